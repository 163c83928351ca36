/* Exponentials and logarithms without branches, so that compilers vectorise loops over them, and by
   short chains of sums; within two units in the last place. */

#include <float.h>
#include <stdint.h>
#include <string.h>

/* Then NumPy does the same. */
#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "Rounding by sums takes arithmetic that is neither reordered nor of excess precision."
#endif

#define LN2_HIGH 0x1.62e42fefap-1 /* few enough bits for exact products with exponents */
#define LN2_LOW 0x1.cf79abc9e3b3ap-40
#define ROUNDER 0x1.8p52 /* added to a number, leaves its integer in the lowest bits */
#define HALF_ROOT INT64_C(0x3fe6a09e667f3bcd) /* bits of sqrt(1/2) */

static inline int64_t to_bits(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double from_bits(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* exp(x) for x <= 0; 0 where that is not a normal number. */
static inline double exp_below(double given)
{
    const double x = given > -708.0 ? given : -708.0;
    const double shifted = x * 0x1.71547652b82fep0 + ROUNDER, k = shifted - ROUNDER;
    const double r = (x - k * LN2_HIGH) - k * LN2_LOW; /* |r| <= ln(2) / 2 */
    const double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
    const double low = (0.5 + r * (1.0 / 6)) + r2 * (1.0 / 24 + r * (1.0 / 120));
    const double middle = (1.0 / 720 + r * (1.0 / 5040)) + r2 * (1.0 / 40320 + r * (1.0 / 362880));
    const double high = (1.0 / 3628800 + r * (1.0 / 39916800)) +
                        r2 * (1.0 / 479001600 + r * (1.0 / 6227020800.0));
    const double sum = 1 + (r + r2 * (low + r4 * middle + r8 * high));
    const uint64_t bits = (uint64_t)to_bits(sum) + ((uint64_t)to_bits(shifted) << 52);
    return given < -708.0 ? 0 : from_bits((int64_t)bits) + 0 * given; /* NaN stays NaN */
}

/* 2 artanh(t) for |t| <= 1/3, by its series. */
static inline double twice_artanh(double t)
{
    const double z = t * t, z2 = z * z, z4 = z2 * z2, z8 = z4 * z4;
    const double first = (1.0 / 3 + z * (1.0 / 5)) + z2 * (1.0 / 7 + z * (1.0 / 9));
    const double second = (1.0 / 11 + z * (1.0 / 13)) + z2 * (1.0 / 15 + z * (1.0 / 17));
    const double third = (1.0 / 19 + z * (1.0 / 21)) + z2 * (1.0 / 23 + z * (1.0 / 25));
    const double fourth = (1.0 / 27 + z * (1.0 / 29)) + z2 * (1.0 / 31 + z * (1.0 / 33));
    const double sum = (first + z4 * second) + z8 * (third + z4 * fourth);
    return 2 * (t + t * z * sum);
}

/* log(1 + x) for -1/2 <= x <= 1 */
static inline double log1p_near(double x)
{
    return twice_artanh(x / (2 + x));
}

/* log(x) for normal x > 0 */
static inline double log_of(double x)
{
    const uint64_t bits = (uint64_t)to_bits(x);
    const uint64_t above = bits - (uint64_t)HALF_ROOT + (UINT64_C(2048) << 52);
    const uint64_t whole = above >> 52; /* 2048 and an exponent: in 52 bits */
    const double k = from_bits((int64_t)(whole | UINT64_C(0x4330000000000000))) - (0x1p52 + 2048);
    const double m = from_bits((int64_t)(bits - ((whole - 2048) << 52)));
    return k * LN2_HIGH + (twice_artanh((m - 1) / (m + 1)) + k * LN2_LOW);
}
