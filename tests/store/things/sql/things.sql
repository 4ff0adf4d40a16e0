-- name: add
-- A thing with a load of zeros.
INSERT INTO things (word, load) VALUES (:word, zeroblob(:bytes));

-- name: add_returning
-- A thing; its word comes back beside its id.
INSERT INTO things (word) VALUES (:word) RETURNING id, word;

-- name: add_child
-- A thing whose parent is checked at the commit.
INSERT INTO things (word, parent) VALUES (:word, :parent);

-- name: count
-- How many things there are.
SELECT count(*) AS n FROM things;

-- name: words
-- All words, in order of their arrival.
SELECT word FROM things ORDER BY id;

-- name: rename
-- Give things that are alike another word.
UPDATE things SET word = :to WHERE word = :word;

-- name: limit_pages
-- A database file that can grow no further.
PRAGMA max_page_count = 60;

-- name: wait_briefly
-- Another program that holds the database is waited for this long only.
PRAGMA busy_timeout = 50;
