/* A VFS for SQLite that passes every call on, and writes down what a disk would see: writes, truncations, syncs,
 * deletions, in order, and the marks of whoever drives it. From this a test makes the files as a power loss at any
 * moment could have left them. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sqlite3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WRITE = 'w', TRUNCATE = 't', SYNC = 's', REMOVE = 'd', MARK = 'm' };

typedef struct {
    sqlite3_file base;
    char *path; /* NULL for files without a name */
    sqlite3_file *real;
} File;

static sqlite3_vfs *below;
static sqlite3_vfs recorder;
static sqlite3_io_methods methods;
static FILE *record;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* One operation: kind, length of the path, offset, length of the data; then path and data. */
static void note(char kind, const char *path, int64_t offset, const void *data, uint32_t length) {
    uint32_t named = path ? (uint32_t)strlen(path) : 0;
    pthread_mutex_lock(&lock);
    fwrite(&kind, 1, 1, record);
    fwrite(&named, sizeof named, 1, record);
    fwrite(&offset, sizeof offset, 1, record);
    fwrite(&length, sizeof length, 1, record);
    if (named) fwrite(path, 1, named, record);
    if (length) fwrite(data, 1, length, record);
    pthread_mutex_unlock(&lock);
}

#define REAL(file) (((File *)(file))->real)
#define PATH(file) (((File *)(file))->path)

static int x_close(sqlite3_file *file) {
    int result = REAL(file)->pMethods->xClose(REAL(file));
    free(REAL(file));
    free(PATH(file));
    return result;
}
static int x_read(sqlite3_file *file, void *to, int length, sqlite3_int64 offset) {
    return REAL(file)->pMethods->xRead(REAL(file), to, length, offset);
}
static int x_write(sqlite3_file *file, const void *from, int length, sqlite3_int64 offset) {
    int result = REAL(file)->pMethods->xWrite(REAL(file), from, length, offset);
    if (result == SQLITE_OK && PATH(file)) note(WRITE, PATH(file), offset, from, (uint32_t)length);
    return result;
}
static int x_truncate(sqlite3_file *file, sqlite3_int64 size) {
    int result = REAL(file)->pMethods->xTruncate(REAL(file), size);
    if (result == SQLITE_OK && PATH(file)) note(TRUNCATE, PATH(file), size, NULL, 0);
    return result;
}
/* The real sync is left out: nothing is lost here, and the record says when it was asked for. */
static int x_sync(sqlite3_file *file, int flags) {
    (void)flags;
    if (PATH(file)) note(SYNC, PATH(file), 0, NULL, 0);
    return SQLITE_OK;
}
static int x_size(sqlite3_file *file, sqlite3_int64 *size) {
    return REAL(file)->pMethods->xFileSize(REAL(file), size);
}
static int x_lock(sqlite3_file *file, int level) { return REAL(file)->pMethods->xLock(REAL(file), level); }
static int x_unlock(sqlite3_file *file, int level) { return REAL(file)->pMethods->xUnlock(REAL(file), level); }
static int x_reserved(sqlite3_file *file, int *out) {
    return REAL(file)->pMethods->xCheckReservedLock(REAL(file), out);
}
static int x_control(sqlite3_file *file, int op, void *argument) {
    return REAL(file)->pMethods->xFileControl(REAL(file), op, argument);
}
static int x_sector(sqlite3_file *file) { return REAL(file)->pMethods->xSectorSize(REAL(file)); }
/* No promise of the disk is passed on: SQLite may not count on whole sectors or on the order of writes. */
static int x_characteristics(sqlite3_file *file) {
    (void)file;
    return 0;
}
static int x_shm_map(sqlite3_file *file, int page, int size, int extend, void volatile **at) {
    return REAL(file)->pMethods->xShmMap(REAL(file), page, size, extend, at);
}
static int x_shm_lock(sqlite3_file *file, int offset, int n, int flags) {
    return REAL(file)->pMethods->xShmLock(REAL(file), offset, n, flags);
}
static void x_shm_barrier(sqlite3_file *file) { REAL(file)->pMethods->xShmBarrier(REAL(file)); }
static int x_shm_unmap(sqlite3_file *file, int remove) {
    return REAL(file)->pMethods->xShmUnmap(REAL(file), remove);
}

static int x_open(sqlite3_vfs *self, const char *path, sqlite3_file *file, int flags, int *out) {
    File *mine = (File *)file;
    (void)self;
    memset(mine, 0, sizeof *mine);
    mine->real = calloc(1, (size_t)below->szOsFile);
    int result = below->xOpen(below, path, mine->real, flags, out);
    if (mine->real->pMethods == NULL) {
        free(mine->real);
        return result;
    }
    mine->path = path ? strdup(path) : NULL;
    mine->base.pMethods = &methods;
    return result;
}
static int x_delete(sqlite3_vfs *self, const char *path, int sync) {
    (void)self;
    int result = below->xDelete(below, path, sync);
    if (result == SQLITE_OK) note(REMOVE, path, 0, NULL, 0);
    return result;
}

/* Become the default VFS and write the record to `path`. 0 on success. */
int recorder_start(const char *path) {
    record = fopen(path, "wb");
    if (record == NULL) return 1;
    below = sqlite3_vfs_find(NULL);
    methods = (sqlite3_io_methods){2, x_close, x_read, x_write, x_truncate, x_sync, x_size, x_lock, x_unlock, x_reserved,
        x_control, x_sector, x_characteristics, x_shm_map, x_shm_lock, x_shm_barrier, x_shm_unmap, NULL, NULL};
    recorder = *below;
    recorder.zName = "recorder";
    recorder.szOsFile = sizeof(File);
    recorder.xOpen = x_open;
    recorder.xDelete = x_delete;
    return sqlite3_vfs_register(&recorder, 1);
}
/* Something was promised now. */
void recorder_mark(int64_t what) { note(MARK, NULL, what, NULL, 0); }
void recorder_stop(void) {
    pthread_mutex_lock(&lock);
    fflush(record);
    pthread_mutex_unlock(&lock);
}
