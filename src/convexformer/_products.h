/* Products of four rows with four others: for compiled modules of problems and of solvers. */

#ifdef HAS_LANES
typedef __m512d Lanes_doubles;
typedef __m512 Lanes_floats;

WIDE static inline __m512d load_doubles(int there, const double *x)
{
    return _mm512_maskz_loadu_pd((__mmask8)there, x);
}

WIDE static inline __m512 load_floats(int there, const float *x)
{
    return _mm512_maskz_loadu_ps((__mmask16)there, x);
}

WIDE static inline double total_doubles(__m512d sum)
{
    return _mm512_reduce_add_pd(sum);
}

WIDE static inline float total_floats(__m512 sum)
{
    return _mm512_reduce_add_ps(sum);
}
#endif

#define NUMBER double
#define NAMED(name) name##_doubles
#include "_fours.h"
#undef NUMBER
#undef NAMED
#define NUMBER float
#define NAMED(name) name##_floats
#include "_fours.h"
#undef NUMBER
#undef NAMED
