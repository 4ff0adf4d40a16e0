-- name: facts_of_worker
-- What a worker's machine has, as it said last.
SELECT epoch, number, json, held FROM facts WHERE worker = :worker;

-- name: all_facts
-- What all machines have.
SELECT worker, json, held FROM facts;

-- name: keep_facts
-- A worker's newer facts in the place of its older ones.
INSERT INTO facts (worker, epoch, number, at, json, held) VALUES (:worker, :epoch, :number, :now, :json, :held)
ON CONFLICT (worker) DO UPDATE SET
  epoch = excluded.epoch, number = excluded.number, at = excluded.at, json = excluded.json, held = excluded.held;

-- name: offer_gpu
-- A worker says that it has this device.
INSERT INTO gpu_offers (uuid, worker, has) VALUES (:uuid, :worker, 0) ON CONFLICT (uuid, worker) DO NOTHING;

-- name: withdraw_gpus
-- What a worker offers no more.
DELETE FROM gpu_offers WHERE worker = :worker AND uuid NOT IN (SELECT value FROM json_each(:uuids));

-- name: rival_offers
-- All offers of these devices, whoever makes them; of equals the worker that is known longest comes first.
SELECT o.uuid, o.worker, w.name, w.online, o.has
FROM gpu_offers AS o JOIN workers AS w ON w.id = o.worker
WHERE o.uuid IN (SELECT value FROM json_each(:uuids))
ORDER BY o.uuid, w.registered_at, w.id;

-- name: gpus_offered_by
-- The devices that a worker offers.
SELECT uuid FROM gpu_offers WHERE worker = :worker;

-- name: gpu_has_none
-- Nobody has this device, for a moment.
UPDATE gpu_offers SET has = 0 WHERE uuid = :uuid AND has = 1;

-- name: give_gpu
-- The worker that has this device from now on.
UPDATE gpu_offers SET has = 1 WHERE uuid = :uuid AND worker = :worker;

-- name: ignored_offers_of
-- Devices that this worker offers, and another one has.
SELECT uuid FROM gpu_offers WHERE worker = :worker AND has = 0;

-- name: ignored_offers
-- Offers of devices that another worker has.
SELECT o.worker, o.uuid, w.name AS owner
FROM gpu_offers AS o JOIN gpu_offers AS holder ON holder.uuid = o.uuid AND holder.has = 1
JOIN workers AS w ON w.id = holder.worker
WHERE o.has = 0;
