/* Whether the records of a batch are what they say, without a Python object for any of them.

   `check` promises what `record_batch.check_records` says of it, where Python does the same more
   slowly; the tests hold one against the other. Every number is compared with what is left of its
   record before it is used. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Others run meanwhile where it takes longer than a few microseconds. */
#define LET_GO_BYTES 65536

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

/* Zigzag, seven bits a byte; 0, or -1 if it is cut off or longer than 64 bits. */
static int read_long_number(Cursor *cursor, int64_t *number) {
    uint64_t value = 0;
    for (int shift = 0; shift <= 63; shift += 7) {
        if (cursor->at >= cursor->end) return -1;
        uint8_t byte = *cursor->at++;
        if (shift == 63 && byte > 1) return -1;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
            return 0;
        }
    }
    return -1;
}

/* Nearly all numbers have one or two bytes. */
static inline int read_number(Cursor *cursor, int64_t *number) {
    const uint8_t *at = cursor->at;
    if (cursor->end - at >= 2) {
        uint32_t value = at[0];
        if (value < 0x80) {
            *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
            cursor->at = at + 1;
            return 0;
        }
        if (at[1] < 0x80) {
            value = (value & 0x7f) | (uint32_t)at[1] << 7;
            *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
            cursor->at = at + 2;
            return 0;
        }
    }
    return read_long_number(cursor, number);
}

/* A byte string; null only where `least` is -1. */
static inline int skip_bytes(Cursor *cursor, int64_t least) {
    int64_t length;
    if (read_number(cursor, &length) < 0 || length < least) return -1;
    if (length > cursor->end - cursor->at) return -1;
    if (length > 0) cursor->at += length;
    return 0;
}

static const char *check_record(Cursor record, int64_t number) {
    int64_t time_delta, offset_delta, headers;
    record.at++; /* Attributes, which have no meaning yet. */
    if (read_number(&record, &time_delta) < 0) return "its timestamp is cut off";
    if (read_number(&record, &offset_delta) < 0) return "its offset is cut off";
    if (offset_delta != number) return "its offset does not follow the one before it";
    if (skip_bytes(&record, -1) < 0) return "its key is longer than the record";
    if (skip_bytes(&record, -1) < 0) return "its value is longer than the record";
    if (read_number(&record, &headers) < 0 || headers < 0) return "its count of headers is none";
    for (; headers > 0; headers--) {
        if (skip_bytes(&record, 0) < 0) return "the name of a header is longer than the record";
        if (skip_bytes(&record, -1) < 0) return "a header is longer than the record";
    }
    return record.at == record.end ? NULL : "it is longer than its fields";
}

static const char *check_all(Cursor data, int64_t count, int64_t *number) {
    for (*number = 0; *number < count; (*number)++) {
        int64_t length;
        if (read_number(&data, &length) < 0) return "it is not there";
        if (length < 1 || length > data.end - data.at) return "it is longer than its batch";
        Cursor record = {data.at, data.at + length};
        const char *wrong = check_record(record, *number);
        if (wrong) return wrong;
        data.at += length;
    }
    return data.at == data.end ? NULL : "bytes follow the last one";
}

static PyObject *check(PyObject *self, PyObject *args) {
    Py_buffer given;
    Py_ssize_t start;
    long long count;
    int64_t number = 0;
    if (!PyArg_ParseTuple(args, "y*nL", &given, &start, &count)) return NULL;
    const char *wrong = "nothing is there";
    if (start >= 0 && start <= given.len) {
        const uint8_t *data = given.buf;
        Cursor records = {data + start, data + given.len};
        if (given.len < LET_GO_BYTES) {
            wrong = check_all(records, count, &number);
        } else {
            Py_BEGIN_ALLOW_THREADS
            wrong = check_all(records, count, &number);
            Py_END_ALLOW_THREADS
        }
    }
    PyBuffer_Release(&given);
    if (wrong) return PyErr_Format(PyExc_ValueError, "record %lld: %s", (long long)number, wrong);
    Py_RETURN_NONE;
}

/* The number of the first record without a key; -1 if all have one. The records are whole. */
static PyObject *first_keyless(PyObject *self, PyObject *args) {
    Py_buffer given;
    Py_ssize_t start;
    long long count, found = -1;
    if (!PyArg_ParseTuple(args, "y*nL", &given, &start, &count)) return NULL;
    if (start >= 0 && start <= given.len) {
        const uint8_t *data = given.buf;
        Cursor records = {data + start, data + given.len};
        for (long long number = 0; number < count && found < 0; number++) {
            int64_t length, skipped, key;
            if (read_number(&records, &length) < 0 || length < 1) break;
            if (length > records.end - records.at) break;
            Cursor record = {records.at + 1, records.at + length};
            records.at = record.end;
            if (read_number(&record, &skipped) < 0 || read_number(&record, &skipped) < 0) break;
            if (read_number(&record, &key) < 0) break;
            if (key < 0) found = number;
        }
    }
    PyBuffer_Release(&given);
    return PyLong_FromLongLong(found);
}

static PyMethodDef methods[] = {
    {"first_keyless", first_keyless, METH_VARARGS, "The first record without a key, or -1."},
    {"check", check, METH_VARARGS, "Raises ValueError unless `count` records are there and whole."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_record_check", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__record_check(void) { return PyModule_Create(&module); }
