/* JSON as far as test vectors and safetensors headers need it: strings have no escapes. */
#ifndef RECHECK_JSON_H
#define RECHECK_JSON_H

#include "program.h"

typedef struct Json {
    char kind; /* {, [, ", or 0 for a number or word */
    Bytes key, text;
    struct Json *first, *next;
} Json;

Json *parse_json(Bytes in);
const Json *member(const Json *object, const char *key);
uint64_t number_of(const Json *value);
Bytes bytes_of(const Json *value); /* of a string of hexadecimal digits after 0x */

#endif
