/* Kafka records to Arrow buffers and back, without a Python object for each record; and to
   objects and back, for teams.

   What the functions promise is said in _plain_records.py, which does the same in Python and is
   what the tests hold this against. Every number read from a record is compared with what is left
   of its section before it is used; a section that lies raises ValueError. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Cursor;

/* A column of byte strings that is being filled. */
typedef struct {
    PyObject *offsets, *data, *valid;
    int32_t *offset;
    uint8_t *bytes, *bits;
    int64_t rows, used, nulls, rows_max, bytes_max;
} Strings;

/* A column of byte strings that is being read: the buffers of an Arrow array. */
typedef struct {
    Py_buffer offsets, data, valid;
    int present, has_valid;
    int64_t first;
} Column;

static int bad(const char *what) {
    PyErr_SetString(PyExc_ValueError, what);
    return -1;
}

static int read_number(Cursor *cursor, int64_t *number) {
    uint64_t value = 0;
    for (int shift = 0; shift <= 63; shift += 7) {
        if (cursor->at >= cursor->end) return bad("a number is cut off");
        uint8_t byte = *cursor->at++;
        if (shift == 63 && byte > 1) return bad("a number is too long");
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *number = (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
            return 0;
        }
    }
    return bad("a number is too long");
}

static int strings_open(Strings *strings, int64_t rows_max, int64_t bytes_max) {
    memset(strings, 0, sizeof *strings);
    strings->offsets = PyBytes_FromStringAndSize(NULL, (rows_max + 1) * 4);
    strings->data = PyBytes_FromStringAndSize(NULL, bytes_max);
    strings->valid = PyBytes_FromStringAndSize(NULL, (rows_max + 7) / 8);
    if (!strings->offsets || !strings->data || !strings->valid) return -1;
    strings->offset = (int32_t *)PyBytes_AS_STRING(strings->offsets);
    strings->bytes = (uint8_t *)PyBytes_AS_STRING(strings->data);
    strings->bits = (uint8_t *)PyBytes_AS_STRING(strings->valid);
    memset(strings->bits, 0xff, (rows_max + 7) / 8);
    strings->offset[0] = 0;
    strings->rows_max = rows_max;
    strings->bytes_max = bytes_max;
    return 0;
}

static void strings_drop(Strings *strings) {
    Py_CLEAR(strings->offsets);
    Py_CLEAR(strings->data);
    Py_CLEAR(strings->valid);
}

/* Headers are not counted in advance: room doubles. */
static int strings_room(Strings *strings) {
    if (strings->rows < strings->rows_max) return 0;
    int64_t rows_max = strings->rows_max * 2 + 64, before = (strings->rows_max + 7) / 8;
    if (_PyBytes_Resize(&strings->offsets, (rows_max + 1) * 4) < 0) return -1;
    if (_PyBytes_Resize(&strings->valid, (rows_max + 7) / 8) < 0) return -1;
    strings->offset = (int32_t *)PyBytes_AS_STRING(strings->offsets);
    strings->bits = (uint8_t *)PyBytes_AS_STRING(strings->valid);
    memset(strings->bits + before, 0xff, (rows_max + 7) / 8 - before);
    strings->rows_max = rows_max;
    return 0;
}

static int strings_add(Strings *strings, Cursor *cursor, int may_be_null) {
    int64_t length;
    if (read_number(cursor, &length) < 0) return -1;
    if (length < 0) {
        if (!may_be_null || length != -1) return bad("a length is negative");
        strings->bits[strings->rows / 8] &= ~(1u << (strings->rows % 8));
        strings->nulls++;
    } else {
        if (length > cursor->end - cursor->at) return bad("a field is longer than its record");
        memcpy(strings->bytes + strings->used, cursor->at, length);
        strings->used += length;
        cursor->at += length;
    }
    strings->offset[++strings->rows] = (int32_t)strings->used;
    return 0;
}

/* (offsets, data, valid or None); the references are given away. */
static PyObject *strings_close(Strings *strings) {
    PyObject *made = NULL;
    if (_PyBytes_Resize(&strings->offsets, (strings->rows + 1) * 4) == 0 &&
        _PyBytes_Resize(&strings->data, strings->used) == 0 &&
        _PyBytes_Resize(&strings->valid, (strings->rows + 7) / 8) == 0)
        made = PyTuple_Pack(3, strings->offsets, strings->data,
                            strings->nulls ? strings->valid : Py_None);
    strings_drop(strings);
    return made;
}

static int64_t microseconds(int64_t base_ms, int64_t delta_ms) {
    const int64_t most = INT64_MAX / 1000;
    int64_t ms;
    if (__builtin_add_overflow(base_ms, delta_ms, &ms)) ms = base_ms < 0 ? -most : most;
    return (ms > most ? most : ms < -most ? -most : ms) * 1000;
}

typedef struct {
    Strings keys, values, header_names, header_values;
    PyObject *offsets, *times, *header_counts;
    int64_t *offset, *time, rows, offset_min, offset_end;
    int32_t *header_count;
    int with_headers;
} Rows;

static int add_headers(Rows *rows, Cursor *record) {
    int64_t count;
    if (read_number(record, &count) < 0) return -1;
    if (count < 0) return bad("a count of headers is negative");
    for (; count > 0; count--) {
        if (strings_room(&rows->header_names) < 0 || strings_room(&rows->header_values) < 0)
            return -1;
        if (strings_add(&rows->header_names, record, 0) < 0) return -1;
        if (strings_add(&rows->header_values, record, 1) < 0) return -1;
    }
    if (record->at != record->end) return bad("a record is longer than its fields");
    return 0;
}

static int add_section(Rows *rows, Cursor *section, int64_t count, int64_t base_offset,
                       int64_t base_ms, int stamped, int64_t stamp_ms) {
    for (; count > 0; count--) {
        int64_t length, time_delta, offset_delta;
        if (read_number(section, &length) < 0) return -1;
        if (length < 1 || length > section->end - section->at)
            return bad("a record is longer than its batch");
        Cursor record = {section->at + 1, section->at + length};
        section->at += length;
        if (read_number(&record, &time_delta) < 0) return -1;
        if (read_number(&record, &offset_delta) < 0) return -1;
        if (offset_delta < 0 || offset_delta > INT32_MAX) return bad("an offset is out of range");
        int64_t offset = base_offset + offset_delta;
        if (offset < rows->offset_min || offset >= rows->offset_end) continue;
        if (strings_add(&rows->keys, &record, 1) < 0) return -1;
        if (strings_add(&rows->values, &record, 1) < 0) return -1;
        if (rows->with_headers) {
            if (add_headers(rows, &record) < 0) return -1;
            rows->header_count[rows->rows + 1] = (int32_t)rows->header_names.rows;
        }
        rows->offset[rows->rows] = offset;
        rows->time[rows->rows] =
            stamped ? microseconds(stamp_ms, 0) : microseconds(base_ms, time_delta);
        rows->rows++;
    }
    return 0;
}

static int measure(PyObject *sections, int64_t *rows, int64_t *bytes) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sections); i++) {
        Py_buffer data;
        long long count, base_offset, base_ms, stamp_ms;
        int stamped;
        PyObject *section = PyList_GET_ITEM(sections, i);
        if (!PyTuple_Check(section)) return bad("a section is a tuple");
        if (!PyArg_ParseTuple(section, "y*LLLpL", &data, &count, &base_offset, &base_ms, &stamped,
                              &stamp_ms))
            return -1;
        int64_t length = data.len;
        PyBuffer_Release(&data);
        /* A record has seven bytes or more: a count that lies does not become memory. */
        if (count < 0 || count > length / 7) return bad("a batch has fewer records than it says");
        if (base_offset < 0 || base_offset > INT64_MAX - INT32_MAX)
            return bad("an offset is out of range");
        *rows += count;
        *bytes += length;
    }
    if (*bytes > INT32_MAX) return bad("more than 2 GiB at once");
    return 0;
}

static int fill(Rows *rows, PyObject *sections) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sections); i++) {
        Py_buffer data;
        long long count, base_offset, base_ms, stamp_ms;
        int stamped;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(sections, i), "y*LLLpL", &data, &count, &base_offset,
                              &base_ms, &stamped, &stamp_ms))
            return -1;
        Cursor section = {data.buf, (const uint8_t *)data.buf + data.len};
        int failed = add_section(rows, &section, count, base_offset, base_ms, stamped, stamp_ms);
        if (!failed && section.at != section.end) failed = bad("a batch is longer than its records");
        PyBuffer_Release(&data);
        if (failed) return -1;
    }
    return 0;
}

static PyObject *decode(PyObject *self, PyObject *args) {
    PyObject *sections, *made = NULL;
    long long offset_min, offset_end;
    int with_headers;
    Rows rows = {0};
    int64_t rows_max = 0, bytes_max = 0;
    if (!PyArg_ParseTuple(args, "O!LLp", &PyList_Type, &sections, &offset_min, &offset_end,
                          &with_headers))
        return NULL;
    if (measure(sections, &rows_max, &bytes_max) < 0) return NULL;
    rows.offset_min = offset_min;
    rows.offset_end = offset_end;
    rows.with_headers = with_headers;
    rows.offsets = PyBytes_FromStringAndSize(NULL, rows_max * 8);
    rows.times = PyBytes_FromStringAndSize(NULL, rows_max * 8);
    rows.header_counts = PyBytes_FromStringAndSize(NULL, (rows_max + 1) * 4);
    if (!rows.offsets || !rows.times || !rows.header_counts) goto out;
    rows.offset = (int64_t *)PyBytes_AS_STRING(rows.offsets);
    rows.time = (int64_t *)PyBytes_AS_STRING(rows.times);
    rows.header_count = (int32_t *)PyBytes_AS_STRING(rows.header_counts);
    rows.header_count[0] = 0;
    if (strings_open(&rows.keys, rows_max, bytes_max) < 0) goto out;
    if (strings_open(&rows.values, rows_max, bytes_max) < 0) goto out;
    if (strings_open(&rows.header_names, 0, with_headers ? bytes_max : 0) < 0) goto out;
    if (strings_open(&rows.header_values, 0, with_headers ? bytes_max : 0) < 0) goto out;
    if (fill(&rows, sections) < 0) goto out;
    if (_PyBytes_Resize(&rows.offsets, rows.rows * 8) < 0) goto out;
    if (_PyBytes_Resize(&rows.times, rows.rows * 8) < 0) goto out;
    if (_PyBytes_Resize(&rows.header_counts, with_headers ? (rows.rows + 1) * 4 : 0) < 0) goto out;
    made = Py_BuildValue("LOONNN", (long long)rows.rows, rows.offsets, rows.times,
                         strings_close(&rows.keys), strings_close(&rows.values),
                         with_headers
                             ? Py_BuildValue("ONN", rows.header_counts,
                                             strings_close(&rows.header_names),
                                             strings_close(&rows.header_values))
                             : Py_NewRef(Py_None));
out:
    strings_drop(&rows.keys);
    strings_drop(&rows.values);
    strings_drop(&rows.header_names);
    strings_drop(&rows.header_values);
    Py_CLEAR(rows.offsets);
    Py_CLEAR(rows.times);
    Py_CLEAR(rows.header_counts);
    return made;
}

/* --- The other way. --- */

static void column_close(Column *column) {
    if (!column->present) return;
    PyBuffer_Release(&column->offsets);
    PyBuffer_Release(&column->data);
    if (column->has_valid) PyBuffer_Release(&column->valid);
    column->present = 0;
}

/* None, or (offsets, data, valid or None, place of the first row). */
static int column_open(Column *column, PyObject *given) {
    PyObject *offsets, *data, *valid;
    long long first;
    memset(column, 0, sizeof *column);
    if (given == Py_None) return 0;
    if (!PyTuple_Check(given)) return bad("a column is None or a tuple");
    if (!PyArg_ParseTuple(given, "OOOL", &offsets, &data, &valid, &first)) return -1;
    if (first < 0) return bad("a column begins before its buffers");
    column->first = first;
    if (PyObject_GetBuffer(offsets, &column->offsets, PyBUF_SIMPLE) < 0) return -1;
    if (PyObject_GetBuffer(data, &column->data, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&column->offsets);
        return -1;
    }
    column->present = 1;
    if (valid != Py_None) {
        if (PyObject_GetBuffer(valid, &column->valid, PyBUF_SIMPLE) < 0) {
            column_close(column);
            return -1;
        }
        column->has_valid = 1;
    }
    return 0;
}

/* 1 and the bytes, 0 for null, -1 for a row that is not there. */
static int column_get(const Column *column, int64_t row, const uint8_t **bytes, int64_t *length) {
    *length = -1;
    if (!column->present) return 0;
    int64_t at = column->first + row;
    if (row < 0 || (at + 2) * 4 > column->offsets.len) return bad("a row is not in its column");
    if (column->has_valid) {
        if (at / 8 >= column->valid.len) return bad("a row is not in its column");
        if (!(((const uint8_t *)column->valid.buf)[at / 8] >> (at % 8) & 1)) return 0;
    }
    const int32_t *offsets = column->offsets.buf;
    int32_t from = offsets[at], to = offsets[at + 1];
    if (from < 0 || to < from || to > column->data.len) return bad("a value is not in its column");
    *bytes = (const uint8_t *)column->data.buf + from;
    *length = to - from;
    return 1;
}

static int number_size(int64_t number) {
    uint64_t value = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    int size = 1;
    while (value >>= 7) size++;
    return size;
}

static uint8_t *put_number(uint8_t *at, int64_t number) {
    uint64_t value = ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
    while (value > 0x7f) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static uint8_t *put_bytes(uint8_t *at, const uint8_t *bytes, int64_t length) {
    at = put_number(at, length);
    if (length > 0) {
        memcpy(at, bytes, length);
        at += length;
    }
    return at;
}

typedef struct {
    Column keys, values, names, contents;
    Py_buffer times, lists, rows;
    int has_times, has_lists;
    int64_t lists_first, now_ms;
} Table;

static int headers_of(const Table *table, int64_t row, int64_t *from, int64_t *to) {
    *from = *to = 0;
    if (!table->has_lists) return 0;
    int64_t at = table->lists_first + row;
    if (row < 0 || (at + 2) * 4 > table->lists.len) return bad("a row is not in its column");
    *from = ((const int32_t *)table->lists.buf)[at];
    *to = ((const int32_t *)table->lists.buf)[at + 1];
    return *from < 0 || *to < *from ? bad("headers are not in their column") : 0;
}

static int64_t headers_size(const Table *table, int64_t from, int64_t to) {
    int64_t size = number_size(to - from);
    for (int64_t i = from; i < to; i++) {
        const uint8_t *bytes;
        int64_t length;
        int found = column_get(&table->names, i, &bytes, &length);
        if (found < 0) return -1;
        if (!found) return bad("a header has no name");
        size += number_size(length) + length;
        if (column_get(&table->contents, i, &bytes, &length) < 0) return -1;
        size += number_size(length) + (length > 0 ? length : 0);
    }
    return size;
}

static uint8_t *put_headers(const Table *table, uint8_t *at, int64_t from, int64_t to) {
    at = put_number(at, to - from);
    for (int64_t i = from; i < to; i++) {
        const uint8_t *bytes = NULL;
        int64_t length;
        column_get(&table->names, i, &bytes, &length);
        at = put_bytes(at, bytes, length);
        column_get(&table->contents, i, &bytes, &length);
        at = put_bytes(at, bytes, length);
    }
    return at;
}

static int64_t floor_ms(int64_t us) { return us / 1000 - (us % 1000 < 0); }

/* Writes records from `rows[start]` on while they fit; gives their number or -1. */
static int64_t put_records(const Table *table, int64_t start, int64_t bytes_max, PyObject **made,
                           int64_t *base_ms, int64_t *most_ms) {
    int64_t used = 0, room = PyBytes_GET_SIZE(*made), count = 0;
    int64_t rows = table->rows.len / 4;
    for (; start + count < rows; count++) {
        int64_t row = ((const int32_t *)table->rows.buf)[start + count];
        const uint8_t *key = NULL, *value = NULL;
        int64_t key_size, value_size, from, to, ms = table->now_ms;
        if (column_get(&table->keys, row, &key, &key_size) < 0) return -1;
        if (column_get(&table->values, row, &value, &value_size) < 0) return -1;
        if (headers_of(table, row, &from, &to) < 0) return -1;
        int64_t tail = headers_size(table, from, to);
        if (tail < 0) return -1;
        if (table->has_times) {
            if (row < 0 || (row + 1) * 8 > table->times.len) return bad("a row is not in its column");
            ms = floor_ms(((const int64_t *)table->times.buf)[row]);
        }
        if (count == 0) *base_ms = *most_ms = ms;
        if (ms > *most_ms) *most_ms = ms;
        int64_t length = 1 + number_size(ms - *base_ms) + number_size(count) +
                         number_size(key_size) + (key_size > 0 ? key_size : 0) +
                         number_size(value_size) + (value_size > 0 ? value_size : 0) + tail;
        int64_t size = number_size(length) + length;
        if (count && used + size > bytes_max) break;
        if (used + size > room) {
            room = used + size;
            if (_PyBytes_Resize(made, room) < 0) return -1;
        }
        uint8_t *at = (uint8_t *)PyBytes_AS_STRING(*made) + used;
        at = put_number(at, length);
        *at++ = 0;
        at = put_number(at, ms - *base_ms);
        at = put_number(at, count);
        at = put_bytes(at, key, key_size);
        at = put_bytes(at, value, value_size);
        put_headers(table, at, from, to);
        used += size;
    }
    return _PyBytes_Resize(made, used) < 0 ? -1 : count;
}

static int table_open(Table *table, PyObject *keys, PyObject *values, PyObject *headers,
                      PyObject *times) {
    if (column_open(&table->keys, keys) < 0) return -1;
    if (column_open(&table->values, values) < 0) return -1;
    if (times != Py_None) {
        if (PyObject_GetBuffer(times, &table->times, PyBUF_SIMPLE) < 0) return -1;
        table->has_times = 1;
    }
    if (headers == Py_None) return 0;
    PyObject *lists, *names, *contents;
    long long first;
    if (!PyArg_ParseTuple(headers, "OLOO", &lists, &first, &names, &contents)) return -1;
    if (first < 0) return bad("a column begins before its buffers");
    table->lists_first = first;
    if (PyObject_GetBuffer(lists, &table->lists, PyBUF_SIMPLE) < 0) return -1;
    table->has_lists = 1;
    if (column_open(&table->names, names) < 0) return -1;
    return column_open(&table->contents, contents);
}

static void table_close(Table *table) {
    column_close(&table->keys);
    column_close(&table->values);
    column_close(&table->names);
    column_close(&table->contents);
    if (table->has_times) PyBuffer_Release(&table->times);
    if (table->has_lists) PyBuffer_Release(&table->lists);
}

static PyObject *encode(PyObject *self, PyObject *args) {
    PyObject *keys, *values, *headers, *times, *made = NULL, *result = NULL;
    Table table = {0};
    long long now_ms;
    Py_ssize_t start, bytes_max;
    int64_t base_ms = 0, most_ms = 0;
    if (!PyArg_ParseTuple(args, "OOOOLy*nn", &keys, &values, &headers, &times, &now_ms, &table.rows,
                          &start, &bytes_max))
        return NULL;
    table.now_ms = now_ms;
    if (start < 0 || start >= table.rows.len / 4 || bytes_max < 1) {
        bad("nothing to encode");
        goto out;
    }
    if (table_open(&table, keys, values, headers, times) < 0) goto out;
    made = PyBytes_FromStringAndSize(NULL, bytes_max);
    if (!made) goto out;
    int64_t count = put_records(&table, start, bytes_max, &made, &base_ms, &most_ms);
    if (count >= 0)
        result = Py_BuildValue("OLLL", made, (long long)count, (long long)base_ms,
                               (long long)most_ms);
out:
    Py_XDECREF(made);
    table_close(&table);
    PyBuffer_Release(&table.rows);
    return result;
}

/* --- Records as objects, and rows of teams. --- */

/* A byte string or, where it may be null, None; a new reference. */
static PyObject *next_bytes(Cursor *record, int may_be_null) {
    int64_t length;
    if (read_number(record, &length) < 0) return NULL;
    if (length == -1 && may_be_null) Py_RETURN_NONE;
    if (length < 0 || length > record->end - record->at) {
        bad(length < 0 ? "a length is negative" : "a field is longer than its record");
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize((const char *)record->at, length);
    record->at += length;
    return made;
}

/* (name, value): a name that is not text is made one, and no value is an empty one. */
static PyObject *next_header(Cursor *record) {
    PyObject *pair = NULL, *text = NULL, *name = next_bytes(record, 0);
    PyObject *value = name ? next_bytes(record, 1) : NULL;
    if (value == Py_None) Py_SETREF(value, PyBytes_FromStringAndSize(NULL, 0));
    if (value)
        text = PyUnicode_DecodeUTF8(PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), "replace");
    if (text) pair = PyTuple_Pack(2, text, value);
    Py_XDECREF(text);
    Py_XDECREF(value);
    Py_XDECREF(name);
    return pair;
}

static PyObject *next_headers(Cursor *record) {
    int64_t count;
    if (read_number(record, &count) < 0) return NULL;
    /* A header has two bytes or more: a count that lies does not become memory. */
    if (count < 0 || count > (record->end - record->at) / 2) {
        bad(count < 0 ? "a count of headers is negative" : "a number is cut off");
        return NULL;
    }
    PyObject *made = PyTuple_New(count);
    for (int64_t i = 0; made && i < count; i++) {
        PyObject *pair = next_header(record);
        if (pair)
            PyTuple_SET_ITEM(made, i, pair);
        else
            Py_CLEAR(made);
    }
    if (made && record->at != record->end) {
        bad("a record is longer than its fields");
        Py_CLEAR(made);
    }
    return made;
}

/* One record as an instance of `kind`, a subclass of tuple without fields of its own. */
static PyObject *object_of(PyTypeObject *kind, Cursor *record, int64_t offset, int64_t at_ms) {
    PyObject *made = kind->tp_alloc(kind, 5);
    if (!made) return NULL;
    PyObject *parts[5] = {PyLong_FromLongLong(offset), PyLong_FromLongLong(at_ms), NULL};
    int whole = parts[0] && parts[1] && (parts[2] = next_bytes(record, 1)) &&
                (parts[3] = next_bytes(record, 1)) && (parts[4] = next_headers(record));
    for (int i = 0; i < 5; i++) PyTuple_SET_ITEM(made, i, parts[i]);
    if (!whole) Py_CLEAR(made);
    return made;
}

static int add_objects(PyObject *made, PyTypeObject *kind, Cursor *section, int64_t count,
                       int64_t base_offset, int64_t base_ms, int stamped, int64_t stamp_ms,
                       int64_t offset_min, int64_t offset_end) {
    for (; count > 0; count--) {
        int64_t length, time_delta, offset_delta;
        if (read_number(section, &length) < 0) return -1;
        if (length < 1 || length > section->end - section->at)
            return bad("a record is longer than its batch");
        Cursor record = {section->at + 1, section->at + length};
        section->at += length;
        if (read_number(&record, &time_delta) < 0) return -1;
        if (read_number(&record, &offset_delta) < 0) return -1;
        if (offset_delta < 0 || offset_delta > INT32_MAX) return bad("an offset is out of range");
        int64_t offset = base_offset + offset_delta;
        if (offset < offset_min || offset >= offset_end) continue;
        int64_t at_us = stamped ? microseconds(stamp_ms, 0) : microseconds(base_ms, time_delta);
        PyObject *one = object_of(kind, &record, offset, at_us / 1000);
        if (!one) return -1;
        int failed = PyList_Append(made, one);
        Py_DECREF(one);
        if (failed) return -1;
    }
    return section->at == section->end ? 0 : bad("a batch is longer than its records");
}

static PyObject *objects(PyObject *self, PyObject *args) {
    PyObject *sections, *made;
    PyTypeObject *kind;
    long long offset_min, offset_end, count, base_offset, base_ms, stamp_ms;
    int64_t rows = 0, bytes = 0;
    if (!PyArg_ParseTuple(args, "O!LLO!", &PyList_Type, &sections, &offset_min, &offset_end,
                          &PyType_Type, &kind))
        return NULL;
    if (!PyType_IsSubtype(kind, &PyTuple_Type) || kind->tp_basicsize != PyTuple_Type.tp_basicsize)
        return PyErr_Format(PyExc_TypeError, "a record is made as a named tuple");
    if (measure(sections, &rows, &bytes) < 0 || !(made = PyList_New(0))) return NULL;
    for (Py_ssize_t i = 0; made && i < PyList_GET_SIZE(sections); i++) {
        Py_buffer data;
        int stamped;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(sections, i), "y*LLLpL", &data, &count, &base_offset,
                              &base_ms, &stamped, &stamp_ms)) {
            Py_CLEAR(made);
            break;
        }
        Cursor section = {data.buf, (const uint8_t *)data.buf + data.len};
        if (add_objects(made, kind, &section, count, base_offset, base_ms, stamped, stamp_ms,
                        offset_min, offset_end) < 0)
            Py_CLEAR(made);
        PyBuffer_Release(&data);
    }
    return made;
}

/* Bytes that are given as an object, or none; -1 bytes for None. */
static int bytes_in(PyObject *given, int may_be_none, const uint8_t **bytes, int64_t *length) {
    *bytes = NULL;
    *length = -1;
    if (given == Py_None && may_be_none) return 0;
    if (!PyBytes_Check(given)) return bad("a field of a row is not bytes");
    *bytes = (const uint8_t *)PyBytes_AS_STRING(given);
    *length = PyBytes_GET_SIZE(given);
    return 0;
}

static int64_t sized(int64_t length) { return number_size(length) + (length > 0 ? length : 0); }

/* One row of a team, taken apart: job, name, key, value, headers. */
typedef struct {
    char id[24];
    int id_size;
    const uint8_t *name, *key, *value;
    int64_t name_size, key_size, value_size;
    PyObject *headers;
} TeamRow;

static int row_open(TeamRow *row, PyObject *given) {
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 5) return bad("a row has five fields");
    long long job = PyLong_AsLongLong(PyTuple_GET_ITEM(given, 0));
    if (job == -1 && PyErr_Occurred()) return -1;
    row->id_size = PyOS_snprintf(row->id, sizeof row->id, "%lld", job);
    row->headers = PyTuple_GET_ITEM(given, 4);
    if (!PyTuple_Check(row->headers)) return bad("headers are a tuple");
    if (bytes_in(PyTuple_GET_ITEM(given, 1), 0, &row->name, &row->name_size) < 0) return -1;
    if (bytes_in(PyTuple_GET_ITEM(given, 2), 1, &row->key, &row->key_size) < 0) return -1;
    return bytes_in(PyTuple_GET_ITEM(given, 3), 1, &row->value, &row->value_size);
}

static int header_open(PyObject *pair, const uint8_t **name, int64_t *name_size,
                       const uint8_t **value, int64_t *value_size) {
    Py_ssize_t length;
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) return bad("a header is a pair");
    *name = (const uint8_t *)PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair, 0), &length);
    if (!*name) return -1;
    *name_size = length;
    return bytes_in(PyTuple_GET_ITEM(pair, 1), 0, value, value_size);
}

static int64_t row_size(const TeamRow *row, int64_t first_size, int64_t count) {
    Py_ssize_t headers = PyTuple_GET_SIZE(row->headers);
    int64_t length = 2 + number_size(count) + sized(row->key_size) + sized(row->value_size) +
                     number_size(headers + 1) + first_size;
    for (Py_ssize_t i = 0; i < headers; i++) {
        const uint8_t *name, *value;
        int64_t name_size, value_size;
        if (header_open(PyTuple_GET_ITEM(row->headers, i), &name, &name_size, &value,
                        &value_size) < 0)
            return -1;
        length += sized(name_size) + sized(value_size);
    }
    return length;
}

static void put_row(uint8_t *at, const TeamRow *row, const Py_buffer *id_name,
                    const Py_buffer *prefix, int64_t length, int64_t count) {
    at = put_number(at, length);
    *at++ = 0;
    *at++ = 0;
    at = put_number(at, count);
    at = put_bytes(at, row->key, row->key_size);
    at = put_bytes(at, row->value, row->value_size);
    at = put_number(at, PyTuple_GET_SIZE(row->headers) + 1);
    at = put_bytes(at, id_name->buf, id_name->len);
    at = put_number(at, prefix->len + row->id_size + row->name_size);
    memcpy(at, prefix->buf, prefix->len);
    memcpy(at + prefix->len, row->id, row->id_size);
    memcpy(at + prefix->len + row->id_size, row->name, row->name_size);
    at += prefix->len + row->id_size + row->name_size;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(row->headers); i++) {
        const uint8_t *name, *value;
        int64_t name_size, value_size;
        header_open(PyTuple_GET_ITEM(row->headers, i), &name, &name_size, &value, &value_size);
        at = put_bytes(at, name, name_size);
        at = put_bytes(at, value, value_size);
    }
}

static PyObject *encode_rows(PyObject *self, PyObject *args) {
    PyObject *rows, *made = NULL, *result = NULL;
    Py_buffer id_name, prefix;
    Py_ssize_t rows_max, bytes_max;
    int64_t used = 0, room = 0, count = 0;
    if (!PyArg_ParseTuple(args, "O!y*y*nn", &PyList_Type, &rows, &id_name, &prefix, &rows_max,
                          &bytes_max))
        return NULL;
    if (PyList_GET_SIZE(rows) < 1 || rows_max < 1 || bytes_max < 1) {
        bad("nothing to encode");
        goto out;
    }
    for (; count < PyList_GET_SIZE(rows) && count < rows_max; count++) {
        TeamRow row;
        if (row_open(&row, PyList_GET_ITEM(rows, count)) < 0) goto out;
        int64_t id_size = sized(prefix.len + row.id_size + row.name_size);
        int64_t length = row_size(&row, sized(id_name.len) + id_size, count);
        if (length < 0) goto out;
        int64_t size = number_size(length) + length;
        if (count && used + size > bytes_max) break;
        if (used + size > room) {
            room = (used + size) * 2;
            if (made ? _PyBytes_Resize(&made, room) < 0
                     : !(made = PyBytes_FromStringAndSize(NULL, room)))
                goto out;
        }
        put_row((uint8_t *)PyBytes_AS_STRING(made) + used, &row, &id_name, &prefix, length, count);
        used += size;
    }
    if (_PyBytes_Resize(&made, used) == 0) result = Py_BuildValue("OL", made, (long long)count);
out:
    Py_XDECREF(made);
    PyBuffer_Release(&id_name);
    PyBuffer_Release(&prefix);
    return result;
}

static uint32_t murmur2(const uint8_t *data, int64_t length) {
    const uint32_t m = 0x5bd1e995;
    uint32_t hash = 0x9747b28cu ^ (uint32_t)length;
    for (; length >= 4; data += 4, length -= 4) {
        uint32_t k = data[0] | data[1] << 8 | data[2] << 16 | (uint32_t)data[3] << 24;
        k *= m;
        k ^= k >> 24;
        hash = hash * m ^ k * m;
    }
    if (length == 3) hash ^= data[2] << 16;
    if (length >= 2) hash ^= data[1] << 8;
    if (length >= 1) hash = (hash ^ data[0]) * m;
    hash = (hash ^ hash >> 13) * m;
    return hash ^ hash >> 15;
}

static PyObject *hash_of(PyObject *self, PyObject *key) {
    if (!PyBytes_Check(key)) return PyErr_Format(PyExc_TypeError, "a key is bytes");
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(key);
    return PyLong_FromUnsignedLong(murmur2(data, PyBytes_GET_SIZE(key)));
}

static PyObject *assign(PyObject *self, PyObject *args) {
    PyObject *keys, *made = NULL;
    Column column;
    long long rows, partitions, first, run;
    if (!PyArg_ParseTuple(args, "OLLLL", &keys, &rows, &partitions, &first, &run)) return NULL;
    if (rows < 0 || partitions < 1 || partitions > INT32_MAX || first < 0 || run < 1)
        return PyErr_Format(PyExc_ValueError, "no partitions to assign to");
    if (column_open(&column, keys) < 0) return NULL;
    made = PyBytes_FromStringAndSize(NULL, rows * 4);
    int32_t *partition = made ? (int32_t *)PyBytes_AS_STRING(made) : NULL;
    for (int64_t row = 0; made && row < rows; row++) {
        const uint8_t *key;
        int64_t length;
        int found = column_get(&column, row, &key, &length);
        if (found < 0)
            Py_CLEAR(made);
        else if (found)
            partition[row] = (int32_t)((murmur2(key, length) & 0x7fffffff) % partitions);
        else
            partition[row] = (int32_t)((first + row) / run % partitions);
    }
    column_close(&column);
    return made;
}

static PyObject *group(PyObject *self, PyObject *args) {
    Py_buffer assigned;
    Py_ssize_t partitions;
    PyObject *starts = NULL, *rows = NULL, *made = NULL;
    if (!PyArg_ParseTuple(args, "y*n", &assigned, &partitions)) return NULL;
    const int32_t *partition = assigned.buf;
    int64_t count = assigned.len / 4;
    if (partitions < 1 || partitions > INT32_MAX) {
        bad("no partitions to group by");
        goto out;
    }
    starts = PyBytes_FromStringAndSize(NULL, (partitions + 1) * 4);
    rows = PyBytes_FromStringAndSize(NULL, count * 4);
    if (!starts || !rows) goto out;
    int32_t *start = (int32_t *)PyBytes_AS_STRING(starts), *row = (int32_t *)PyBytes_AS_STRING(rows);
    memset(start, 0, (partitions + 1) * 4);
    for (int64_t i = 0; i < count; i++) {
        if (partition[i] < 0 || partition[i] >= partitions) {
            bad("a partition that is not there");
            goto out;
        }
        start[partition[i] + 1]++;
    }
    for (int64_t i = 0; i < partitions; i++) start[i + 1] += start[i];
    for (int64_t i = 0; i < count; i++) row[start[partition[i]]++] = (int32_t)i;
    memmove(start + 1, start, partitions * 4);
    start[0] = 0;
    made = PyTuple_Pack(2, starts, rows);
out:
    Py_XDECREF(starts);
    Py_XDECREF(rows);
    PyBuffer_Release(&assigned);
    return made;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, "Sections of records to the buffers of Arrow columns."},
    {"encode", encode, METH_VARARGS, "Rows of Arrow columns to a section of records."},
    {"objects", objects, METH_VARARGS, "Sections of records to named tuples."},
    {"encode_rows", encode_rows, METH_VARARGS, "Rows of a team to a section of records."},
    {"assign", assign, METH_VARARGS, "The partition of each row, by its key."},
    {"group", group, METH_VARARGS, "Rows in order of their partitions."},
    {"murmur2", hash_of, METH_O, "The hash of a key by which Kafka's clients choose a partition."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_records", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__records(void) { return PyModule_Create(&module); }
