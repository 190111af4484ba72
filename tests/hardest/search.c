/* Which f32 arguments have a function value near a boundary of rounding: a filter in FP64 (see search.py).
 *
 *   search FUNCTION FIRST LAST    of the patterns FIRST ... LAST, hexadecimal, prints those that stay; then how many there
 *                                 were, and the one whose value has the least magnitude
 *
 * Every number of at most 25 significant bits is taken for a boundary: the numbers and the ties of each format of 16 to 32
 * bits are among them. An FP64 value has 53: its lowest 28 say how far it is from the next such number. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In units of the last of 53 bits. If the library's functions err by less than 960 of them (search.py sees less than 4), no
 * argument is dropped whose exact value is within 2^-47 of a boundary, relatively. */
enum { NEAR = 1024, CUT = 28 };

struct function {
    const char *name;
    double (*value)(double);
};

static const struct function FUNCTIONS[] = {
    {"exp", exp}, {"log", log}, {"tanh", tanh}, {"erf", erf}, {"sin", sin}, {"cos", cos},
};

static double argument(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int is_near(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t rest = (bits + NEAR) & ((UINT64_C(1) << CUT) - 1);
    return rest <= 2 * NEAR;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "expected FUNCTION FIRST LAST, got %d arguments\n", argc - 1);
        return 2;
    }
    for (size_t k = 0; k < sizeof FUNCTIONS / sizeof *FUNCTIONS; ++k) {
        if (strcmp(FUNCTIONS[k].name, argv[1]) != 0)
            continue;
        uint64_t first = strtoull(argv[2], NULL, 16), last = strtoull(argv[3], NULL, 16);
        uint64_t least = first;
        double magnitude = INFINITY;
        for (uint64_t bits = first; bits <= last; ++bits) {
            double value = FUNCTIONS[k].value(argument((uint32_t)bits));
            if (is_near(value))
                printf("%08x\n", (unsigned)bits);
            if (fabs(value) < magnitude) {
                magnitude = fabs(value);
                least = bits;
            }
        }
        printf("of %llu, least %08x\n", (unsigned long long)(last - first + 1), (unsigned)least);
        return 0;
    }
    fprintf(stderr, "expected one of six functions, got %s\n", argv[1]);
    return 2;
}
