/* The last offset of each key, and what is left of a batch by it, without a Python object for any
   record.

   `KeyMap` promises what `key_map.PlainKeyMap` says of it, where Python does the same more slowly;
   the tests hold one against the other. A key is known by 128 bits of SipHash-2-4 under a secret
   that is drawn for each map, so that nobody can choose keys that pass for each other. Every number
   is compared with what is left of its record before it is used. The interpreter is let go while
   records are looked at: others must not use the same map meanwhile.

   A batch of a megabyte takes milliseconds, and the scheduler lets a thread run for about three
   before another one gets its core. The thread that syncs what producers wait for needs microseconds
   now and then, so this one offers its core after every few records. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

typedef struct {
    uint64_t low;
    uint64_t high;
    int64_t offset; /* -1: free. */
} Slot;

typedef struct {
    PyObject_HEAD
    Slot *slots;
    uint64_t slot_count;
    uint64_t used;
    uint64_t used_max;
    uint64_t secret[2];
} KeyMap;

/* A record, as far as it matters here. */
typedef struct {
    const uint8_t *begin; /* Its length. */
    const uint8_t *body;  /* Its attributes, one byte. */
    const uint8_t *behind_time;
    const uint8_t *end;
    int64_t time_delta;
    int64_t offset_delta;
    const uint8_t *key; /* NULL: none. */
    int64_t key_bytes;
    int is_tombstone;
} Record;

/* Zigzag, seven bits a byte; 0, or -1 if it is cut off or longer than 64 bits. */
static int read_number(Cursor *cursor, int64_t *number) {
    uint64_t value = 0;
    for (int shift = 0; shift <= 63; shift += 7) {
        if (cursor->at >= cursor->end) return -1;
        uint8_t byte = *cursor->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
            return 0;
        }
    }
    return -1;
}

static uint8_t *write_number(uint8_t *at, int64_t number) {
    uint64_t value = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    for (; value > 0x7f; value >>= 7) *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static int read_record(Cursor *data, Record *record) {
    int64_t length, value_bytes;
    record->begin = data->at;
    if (read_number(data, &length) < 0 || length < 1 || length > data->end - data->at) return -1;
    Cursor inside = {data->at + 1, data->at + length};
    record->body = data->at;
    record->end = data->at = inside.end;
    if (read_number(&inside, &record->time_delta) < 0) return -1;
    record->behind_time = inside.at;
    if (read_number(&inside, &record->offset_delta) < 0) return -1;
    if (record->offset_delta < 0 || record->offset_delta > INT32_MAX) return -1;
    if (read_number(&inside, &record->key_bytes) < 0) return -1;
    if (record->key_bytes > inside.end - inside.at) return -1;
    record->key = record->key_bytes < 0 ? NULL : inside.at;
    if (record->key_bytes > 0) inside.at += record->key_bytes;
    if (read_number(&inside, &value_bytes) < 0) return -1;
    record->is_tombstone = value_bytes < 0;
    return 0;
}

/* SipHash-2-4 with 128 bits, by Aumasson and Bernstein. */

#define ROTATE(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define ROUND                                                                                     \
    do {                                                                                          \
        v0 += v1; v1 = ROTATE(v1, 13); v1 ^= v0; v0 = ROTATE(v0, 32);                             \
        v2 += v3; v3 = ROTATE(v3, 16); v3 ^= v2;                                                  \
        v0 += v3; v3 = ROTATE(v3, 21); v3 ^= v0;                                                  \
        v2 += v1; v1 = ROTATE(v1, 17); v1 ^= v2; v2 = ROTATE(v2, 32);                             \
    } while (0)

static void hash_key(const uint64_t secret[2], const uint8_t *key, uint64_t size, Slot *slot) {
    uint64_t v0 = 0x736f6d6570736575ULL ^ secret[0], v1 = 0x646f72616e646f6dULL ^ secret[1] ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261ULL ^ secret[0], v3 = 0x7465646279746573ULL ^ secret[1];
    uint64_t word, last = size << 56;
    const uint8_t *end = key + (size - size % 8);
    for (; key != end; key += 8) {
        memcpy(&word, key, 8);
        v3 ^= word;
        ROUND;
        ROUND;
        v0 ^= word;
    }
    for (uint64_t at = 0; at < size % 8; at++) last |= (uint64_t)end[at] << (8 * at);
    v3 ^= last;
    ROUND;
    ROUND;
    v0 ^= last;
    v2 ^= 0xee;
    for (int round = 0; round < 4; round++) ROUND;
    slot->low = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int round = 0; round < 4; round++) ROUND;
    slot->high = v0 ^ v1 ^ v2 ^ v3;
}

/* The key's own place, or the free one where it would be. */
static Slot *find(const KeyMap *map, const Record *record, Slot *wanted) {
    hash_key(map->secret, record->key, (uint64_t)record->key_bytes, wanted);
    uint64_t at = (uint64_t)(((unsigned __int128)wanted->low * map->slot_count) >> 64);
    for (;;) {
        Slot *slot = map->slots + at;
        if (slot->offset < 0) return slot;
        if (slot->low == wanted->low && slot->high == wanted->high) return slot;
        if (++at == map->slot_count) at = 0;
    }
}

/* About 50 microseconds of work where the map does not fit into the processor's cache; offering the
   core costs less than one if nobody wants it. */
#define RECORDS_AT_ONCE 128

static inline void give_way(long long number) {
    if (number % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1) sched_yield();
}

/* What `put`, `judge` and `copy` are given. */
typedef struct {
    Py_buffer buffer;
    Cursor records;
    long long count;
    long long base_offset;
} Batch;

static int begin(Batch *batch, Py_ssize_t start) {
    if (start < 0 || start > batch->buffer.len) {
        PyBuffer_Release(&batch->buffer);
        PyErr_SetString(PyExc_ValueError, "the records begin behind the end");
        return -1;
    }
    const uint8_t *data = batch->buffer.buf;
    batch->records.at = data + start;
    batch->records.end = data + batch->buffer.len;
    return 0;
}

static PyObject *malformed(void) {
    PyErr_SetString(PyExc_ValueError, "not a record");
    return NULL;
}

/* -1: all are in the map; -2: malformed; else the offset of the first that found no room. */
static int64_t put_all(KeyMap *map, Batch *batch, int64_t first) {
    Record record;
    Slot wanted;
    for (long long number = 0; number < batch->count; number++) {
        give_way(number);
        if (read_record(&batch->records, &record) < 0) return -2;
        int64_t offset = batch->base_offset + record.offset_delta;
        if (!record.key || offset < first) continue;
        Slot *slot = find(map, &record, &wanted);
        if (slot->offset < 0) {
            if (map->used >= map->used_max) return offset;
            map->used++;
            slot->low = wanted.low;
            slot->high = wanted.high;
        }
        slot->offset = offset;
    }
    return -1;
}

static PyObject *put(KeyMap *map, PyObject *args) {
    Batch batch;
    Py_ssize_t start;
    long long first;
    int64_t stopped;
    if (!PyArg_ParseTuple(args, "y*nLLL", &batch.buffer, &start, &batch.count, &batch.base_offset,
                          &first))
        return NULL;
    if (begin(&batch, start) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    stopped = put_all(map, &batch, first);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&batch.buffer);
    return stopped == -2 ? malformed() : PyLong_FromLongLong(stopped);
}

/* Whether a record stays. */
static inline int stays(const KeyMap *map, const Batch *batch, const Record *record, int64_t end,
                        int tombstones_stay) {
    Slot wanted;
    int64_t offset = batch->base_offset + record->offset_delta;
    if (offset >= end) return 1;
    if (!record->key) return 0;
    if (record->is_tombstone && !tombstones_stay) return 0;
    return offset >= find(map, record, &wanted)->offset;
}

static PyObject *judge(KeyMap *map, PyObject *args) {
    Batch batch;
    Py_ssize_t start;
    long long end, kept = 0, tombstones = 0, lowest = INT64_MAX, highest = INT64_MIN;
    int tombstones_stay, failed = 0;
    if (!PyArg_ParseTuple(args, "y*nLLLp", &batch.buffer, &start, &batch.count, &batch.base_offset,
                          &end, &tombstones_stay))
        return NULL;
    if (begin(&batch, start) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    Record record;
    for (long long number = 0; number < batch.count; number++) {
        give_way(number);
        if ((failed = read_record(&batch.records, &record)) < 0) break;
        if (!stays(map, &batch, &record, end, tombstones_stay)) continue;
        kept++;
        tombstones += record.is_tombstone && batch.base_offset + record.offset_delta < end;
        if (record.time_delta < lowest) lowest = record.time_delta;
        if (record.time_delta > highest) highest = record.time_delta;
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&batch.buffer);
    return failed ? malformed() : Py_BuildValue("LLLL", kept, tombstones, lowest, highest);
}

/* The records that stay, their times `shift` more; NULL if malformed. `made` has room for all. */
static uint8_t *copy_all(const KeyMap *map, Batch *batch, int64_t end, int tombstones_stay,
                         int64_t shift, uint8_t *made) {
    Record record;
    uint8_t number_made[10];
    for (long long number = 0; number < batch->count; number++) {
        give_way(number);
        if (read_record(&batch->records, &record) < 0) return NULL;
        if (!stays(map, batch, &record, end, tombstones_stay)) continue;
        if (!shift) {
            memcpy(made, record.begin, (size_t)(record.end - record.begin));
            made += record.end - record.begin;
            continue;
        }
        int64_t time_delta = (int64_t)((uint64_t)record.time_delta + (uint64_t)shift);
        size_t time_bytes = (size_t)(write_number(number_made, time_delta) - number_made);
        size_t rest = (size_t)(record.end - record.behind_time);
        made = write_number(made, (int64_t)(1 + time_bytes + rest));
        *made++ = *record.body;
        memcpy(made, number_made, time_bytes);
        made += time_bytes;
        memcpy(made, record.behind_time, rest);
        made += rest;
    }
    return made;
}

static PyObject *copy(KeyMap *map, PyObject *args) {
    Batch batch;
    Py_ssize_t start;
    long long end, shift;
    int tombstones_stay;
    if (!PyArg_ParseTuple(args, "y*nLLLpL", &batch.buffer, &start, &batch.count, &batch.base_offset,
                          &end, &tombstones_stay, &shift))
        return NULL;
    if (begin(&batch, start) < 0) return NULL;
    /* A record has six bytes at least, and a longer time makes it longer by nine and one. */
    Py_ssize_t room = batch.records.end - batch.records.at;
    if (shift) room += 10 * (room / 6 + 1);
    PyObject *made = PyBytes_FromStringAndSize(NULL, room);
    uint8_t *stop = NULL, *from = NULL;
    if (made) {
        from = (uint8_t *)PyBytes_AS_STRING(made);
        Py_BEGIN_ALLOW_THREADS
        stop = copy_all(map, &batch, end, tombstones_stay, shift, from);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&batch.buffer);
    if (!made) return NULL;
    if (!stop) {
        Py_DECREF(made);
        return malformed();
    }
    _PyBytes_Resize(&made, stop - from);
    return made;
}

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"keys_max", "secret", NULL};
    unsigned long long keys_max;
    const char *secret;
    Py_ssize_t secret_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ky#", names, &keys_max, &secret, &secret_bytes))
        return NULL;
    if (secret_bytes != 16 || keys_max < 1 || keys_max > (1ULL << 40)) {
        PyErr_SetString(PyExc_ValueError, "a map has room for keys, and a secret of 16 bytes");
        return NULL;
    }
    KeyMap *map = (KeyMap *)type->tp_alloc(type, 0);
    if (!map) return NULL;
    /* A fourth stays free, or the way to a place would become long. */
    map->slot_count = keys_max + keys_max / 3 + 1;
    map->used_max = keys_max;
    memcpy(map->secret, secret, 16);
    map->slots = PyMem_RawMalloc(map->slot_count * sizeof(Slot));
    if (!map->slots) {
        Py_DECREF(map);
        return PyErr_NoMemory();
    }
    memset(map->slots, 0xff, map->slot_count * sizeof(Slot));
    return (PyObject *)map;
}

static void map_free(KeyMap *map) {
    PyMem_RawFree(map->slots);
    Py_TYPE(map)->tp_free((PyObject *)map);
}

static Py_ssize_t map_length(KeyMap *map) { return (Py_ssize_t)map->used; }

static PyMethodDef map_methods[] = {
    {"put", (PyCFunction)put, METH_VARARGS, "Remembers where keys were seen last."},
    {"judge", (PyCFunction)judge, METH_VARARGS, "How many records of a batch stay."},
    {"copy", (PyCFunction)copy, METH_VARARGS, "The records of a batch that stay."},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods map_sequence = {.sq_length = (lenfunc)map_length};

static PyTypeObject map_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dovetail.log.compaction._key_map.KeyMap",
    .tp_basicsize = sizeof(KeyMap),
    .tp_dealloc = (destructor)map_free,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = map_methods,
    .tp_as_sequence = &map_sequence,
    .tp_new = map_new,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_key_map", NULL, -1, NULL,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__key_map(void) {
    if (PyType_Ready(&map_type) < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    if (!made) return NULL;
    Py_INCREF(&map_type);
    if (PyModule_AddObject(made, "KeyMap", (PyObject *)&map_type) < 0) {
        Py_DECREF(&map_type);
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
