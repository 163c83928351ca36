/* Newton's method for a logistic loss, or a softmax, on some tokens.

   minimise over Z, b   sum_i a_i loss(f_i, y_i) + sum_e limit_e ||Z_e||,   f = A Z + 1 b'

   Every step minimises the second-order model by block descent (block_descent.h), the intercepts eliminated, and
   searches the objective along the move. A call takes what its arithmetic takes, where in NumPy
   calls would outweigh that.

   Coefficients are ordered (token, output, channel): a block of the penalty is a token of one
   output, or of all. Samples' numbers are (outputs, N). Curvature couples pairs of outputs. */

#include <time.h>

#include "common.h"
#include "intercepts.h"
#include "losses.h"
#define NUMBER double
#define NAMED(name) name##_doubles
#include "four_by_four.h"
#undef NUMBER
#undef NAMED
#define NUMBER float
#define NAMED(name) name##_floats
#include "four_by_four.h"
#undef NUMBER
#undef NAMED
#include "newton_columns.h"
#include "newton_objective.h"
#include "block_descent.h"

#define STEPS 40        /* of Newton's method, at most */
#define CYCLES 60       /* of sweeps on one model, at most */
#define UNSEEN 3        /* steps by which the objective may fall too little to see */
#define RECENT 4        /* cycles by which speed is judged */
#define HALVINGS 30     /* of a move */
#define INNER_GAP 0.001 /* of the gap that a model's may have, if that is above what is wanted, */
#define EARLY_GAP 0.02  /* and where the next will not be far below this one */
#define WANTED 0.1      /* of what is wanted that a model's may always have */
#define SURE 0.3        /* of what is wanted: a step that promises as much ends there */
#define CANCELLED 1e-6  /* of a sum of squares: where less is left, digits are gone, */
#define FEW_LEFT 1e-3   /* and where products were in float32 */

/* Seconds on the clock of the system. */
static double now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

/* Models --------------------------------------------------------------------------------------- */

/* About the largest eigenvalue of a positive (d, d) matrix, or a little more: the eighth root of what
   the eighth powers of all sum to. `block` has room for two such matrices. */
VECTORISED static double largest(Py_ssize_t d, const float *G, double *block)
{
    double trace = 0, sum = 0, *square = block, *next = block + d * d;
    for (Py_ssize_t j = 0; j < d; j++)
        trace += G[j * d + j];
    if (d == 1 || !(trace > 0))
        return trace;
    for (Py_ssize_t j = 0; j < d * d; j++)
        square[j] = G[j] / trace;
    for (int power = 0; power < 2; power++) {
        memset(next, 0, d * d * sizeof *next);
        for (Py_ssize_t i = 0; i < d; i++)
            for (Py_ssize_t j = 0; j < d; j++)
#pragma omp simd
                for (Py_ssize_t k = 0; k < d; k++)
                    next[i * d + k] += square[i * d + j] * square[j * d + k];
        memcpy(square, next, d * d * sizeof *next);
    }
    for (Py_ssize_t j = 0; j < d * d; j++)
        sum += square[j] * square[j];
    return trace * pow(sum, 0.125);
}

/* Add what a pair of outputs has of the Hessian, `share` of what G has. */
static void add_pair(Newton *at, Pair of, double share)
{
    const Py_ssize_t size = at->size;
    double *const Q = at->Q;
    for (Py_ssize_t j = 0; j < at->X->p; j++) {
        const double *G = at->G + j * at->X->width;
        const Py_ssize_t jl = place(at, j, of.l), jm = place(at, j, of.m);
        for (Py_ssize_t k = 0; k <= j; k++) {
            const Py_ssize_t kl = place(at, k, of.l), km = place(at, k, of.m);
            const double g = share * G[k];
            Q[kl * size + jl] = Q[jl * size + kl] += g;
            if (of.l == of.m)
                continue;
            Q[km * size + jm] = Q[jm * size + km] += g;
            Q[km * size + jl] = Q[jl * size + km] = -g;
            Q[kl * size + jm] = Q[jm * size + kl] = -g;
        }
    }
}

/* The Hessian, intercepts eliminated; 0 where that loses digits. Where all samples score the same,
   pairs of outputs differ by a factor. */
VECTORISED static int form(Newton *at)
{
    const Py_ssize_t size = at->size, N = at->X->N;
    const int alike = at->is_flat && at->P[0] * at->P[at->c > 1 ? N : 0] > 0;
    double first = 1;
    memset(at->Q, 0, size * size * sizeof *at->Q);
    for (Py_ssize_t both = 0; both < at->pairs; both++) {
        const Pair of = pair(at, both);
        const double shared = at->P[of.l * N] * at->P[of.m * N];
        first = both == 0 ? shared : first;
        if (both == 0 || !alike)
            weighted_gram(at->X, at->W + both * N, at->G);
        add_pair(at, of, alike ? shared / first : 1);
    }
    for (Py_ssize_t u = 0; u < size && at->intercept; u++) {
        double *q = at->Q + u * size;
        const double whole = q[u];
        for (Py_ssize_t l = 0; l < at->c; l++) {
            const double *t = at->T + l * size, by = t[u];
#pragma omp simd
            for (Py_ssize_t v = 0; v < size; v++)
                q[v] -= by * t[v];
        }
        if (q[u] < (at->X->floats == NULL ? CANCELLED : FEW_LEFT) * whole)
            return 0;
    }
    return 1;
}

/* Whether a step may be tried once more, with a Hessian in double precision. */
static int drop_floats(Newton *at)
{
    const int had = at->X->floats != NULL;
    at->X->floats = NULL;
    if (had)
        expand(at, 0);
    return had;
}

/* Units of blocks, the Hessian in these, and what else sweeps want to know. */
VECTORISED static void prepare_sweeps(Newton *at)
{
    const Py_ssize_t size = at->size, width = at->width;
    double *by = at->move; /* free until a move is known */
    for (Py_ssize_t e = 0; e < at->blocks; e++) {
        double trace = 0;
        for (Py_ssize_t j = e * width; j < (e + 1) * width; j++)
            trace += at->Q[j * size + j];
        at->unit[e] = trace > 0 ? sqrt(trace / width) : 1;
        for (Py_ssize_t j = e * width; j < (e + 1) * width; j++)
            by[j] = 1 / at->unit[e];
    }
    for (Py_ssize_t u = 0; u < size; u++)
        for (Py_ssize_t v = 0; v < size; v++)
            at->Q[u * size + v] *= by[u] * by[v];
    for (Py_ssize_t e = 0; e < at->blocks; e++) {
        float *G = at->gram + e * width * width;
        for (Py_ssize_t i = 0; i < width; i++)
            for (Py_ssize_t j = 0; j < width; j++)
                G[i * width + j] = (float)at->Q[(e * width + i) * size + e * width + j];
        const double curvature = largest(width, G, at->block);
        at->step[e] = 1 / (curvature > 1e-30 ? curvature : 1e-30);
        at->rows[e] = at->Q + e * width * size;
        at->rows[at->blocks + e] = G;
    }
}

/* at->to = about the minimiser of the model, its gap below `target`; 1, 0 where sweeps are slow, -1
   where memory is short. In units of blocks, and of the largest limit. */
static int minimise_model(Newton *at, double target)
{
    double unit = 0, value, left, gaps[CYCLES];
    int found = 0, slow = 0;
    for (Py_ssize_t e = 0; e < at->blocks; e++) {
        at->limits[e] = at->limit[e] / at->unit[e];
        unit = at->limits[e] > unit ? at->limits[e] : unit;
    }
    unit = unit > 0 ? unit : 1;
    for (Py_ssize_t e = 0; e < at->blocks; e++)
        at->limits[e] /= unit;
    for (Py_ssize_t j = 0; j < at->size; j++) {
        at->to[j] = at->Z[j] * at->unit[j / at->width] / unit;
        at->M[j] /= at->unit[j / at->width] * unit;
    }
    double square = 2 * at->loss / (unit * unit);
    Round round = {.n = at->blocks, .d = at->width, .c = 1, .N = at->size, .part = 1,
                   .sweeps = SWEEPS, .in_samples = 0, .A = at->rows, .gram = at->rows + at->blocks,
                   .step = at->step, .limit = at->limits, .square = &square, .Z = at->to,
                   .M = at->M};
    for (int cycles = 0; cycles < CYCLES && !found && !slow; cycles++) {
        if (!run_cycle(&round, &value, &left))
            return -1;
        gaps[cycles] = left * unit * unit;
        found = gaps[cycles] <= target;
        if (cycles >= RECENT) { /* as it fell of late, is there an end in sight? */
            const double fall = pow(gaps[cycles] / gaps[cycles - RECENT], 1.0 / RECENT);
            slow = !(gaps[cycles] * pow(fall, CYCLES) <= target);
        }
        if (!found && now() > at->end) /* what there is may do for a step */
            break;
    }
    for (Py_ssize_t j = 0; j < at->size; j++)
        at->to[j] *= unit / at->unit[j / at->width];
    return found || (!slow && now() > at->end);
}

/* Steps ---------------------------------------------------------------------------------------- */

/* f += by, and what v promises of f */
VECTORISED static double lifted(Py_ssize_t N, double by, const double *v, double *f)
{
    double promise = 0;
#pragma omp simd reduction(- : promise)
    for (Py_ssize_t i = 0; i < N; i++) {
        f[i] += by;
        promise -= v[i] * f[i];
    }
    return promise;
}

/* Scores' move to at->to, with that of the intercepts in `lift`; and what it promises. */
static double turn(Newton *at, double *lift)
{
    const Py_ssize_t N = at->X->N, size = at->size;
    double promise = 0;
    for (Py_ssize_t j = 0; j < size; j++)
        at->move[j] = at->to[j] - at->Z[j];
    for (Py_ssize_t l = 0; l < at->c; l++) {
        lift[l] = at->intercept ? at->slope[l] : 0;
        for (Py_ssize_t j = 0; j < size && at->intercept; j++)
            lift[l] -= at->T[l * size + j] * at->move[j];
    }
    if (at->intercept)
        solve_back(at->c, at->bend, lift);
    for (Py_ssize_t l = 0; l < at->c; l++) {
        for (Py_ssize_t j = 0; j < at->X->p; j++)
            at->part[j] = at->move[place(at, j, l)];
        predict(at->X, at->part, at->turn + l * N);
        promise += lifted(N, lift[l], at->V + l * N, at->turn + l * N);
    }
    return promise + penalty(at, 1) - at->penalty;
}

/* Move towards at->to as far as the objective falls as promised: 1, or 2 where that is too little to
   see, else 0. Slopes and curvatures are those there afterwards. `lift` has room for c numbers. */
static int search(Newton *at, double *b, double *lift)
{
    const double promise = turn(at, lift), start = at->loss + at->penalty, slack = 1e-14 * start;
    double t = 1;
    for (int halvings = 0; halvings < HALVINGS && promise <= slack; halvings++, t *= 0.5) {
        if (halvings > 0 && now() > at->end)
            return 0;
        const double loss = expand(at, t), weight = penalty(at, t);
        if (!(loss + weight <= start + 1e-4 * t * promise + slack))
            continue;
        double *const f = at->f;
        at->f = at->trial, at->trial = f;
        for (Py_ssize_t j = 0; j < at->size; j++)
            at->Z[j] = t == 1 ? at->to[j] : at->Z[j] + t * at->move[j];
        for (Py_ssize_t l = 0; l < at->c; l++) {
            b[l] += t * lift[l];
            for (Py_ssize_t j = 0; j < at->X->p && at->X->A == NULL; j++) /* as if less its mean */
                b[l] += t * at->center[j] * at->move[place(at, j, l)];
        }
        at->loss = loss, at->penalty = weight, at->is_flat = 0;
        return promise < -slack ? 1 : 2;
    }
    return 0;
}

/* Steps until the gap is below `goal` of the objective: 1, 2 where time is up before, 0 where steps
   end before, -1 where memory is short. `left` is the gap, over the objective. */
static int iterate(Newton *at, double goal, double *b, double *left)
{
    double *lift = at->slope + at->c;
    at->loss = expand(at, 0);
    at->is_flat = 1;
    for (Py_ssize_t l = 0; l < at->c; l++)
        for (Py_ssize_t i = l * at->X->N; i < (l + 1) * at->X->N && at->is_flat; i++)
            at->is_flat = at->f[i] == at->f[l * at->X->N];
    at->penalty = penalty(at, 0);
    double before = 0; /* the gap of the step before this one */
    for (int steps = 0, unseen = 0; steps < STEPS && unseen < UNSEEN; steps++) {
        const double worth = at->loss + at->penalty, above = gap(at), wanted = goal * worth;
        *left = worth > 0 ? above / worth : 0;
        if (above <= wanted) {
            if (at->intercept) /* the gap is that at their best */
                solve_back(at->c, at->bend, at->slope);
            for (Py_ssize_t l = 0; l < at->c && at->intercept; l++)
                b[l] += at->slope[l];
            return 1;
        }
        if (!(above < INFINITY))
            return 0;
        if (steps > 0 && now() > at->end)
            return 2;
        if (!(above * above <= SURE * wanted * before)) { /* else the last Hessian will do */
            if (!form(at)) {
                if (!drop_floats(at))
                    return 0;
                continue;
            }
            prepare_sweeps(at);
        }
        const double fall = before > 0 ? above / before : 1; /* the next is about its square */
        const double part = fmin(fmax(0.1 * fall * fall, INNER_GAP), EARLY_GAP);
        before = above;
        const int found = minimise_model(at, fmax(WANTED * wanted, part * above));
        const int moved = found > 0 ? search(at, b, lift) : 0;
        if (!moved && (found < 0 || !drop_floats(at)))
            return found < 0 ? -1 : 0;
        before = moved ? before : 0;
        unseen += moved == 2;
    }
    return 0;
}

/* Memory for all of it: numbers in one piece, from zero. */
static int reserve(Newton *at, double **numbers)
{
    const Py_ssize_t N = at->X->N, p = at->X->p, c = at->c, size = at->size, width = at->X->width;
    const Py_ssize_t square = at->width * at->width;
    double **const parts[] = {&at->f, &at->turn, &at->trial, &at->V, &at->W, &at->P,
                              &at->value, &at->to, &at->move, &at->M, &at->sums, &at->T, &at->part,
                              &at->slope, &at->bend, &at->Q, &at->G, &at->unit, &at->limits,
                              &at->step, &at->block};
    const Py_ssize_t sizes[] = {c * N, c * N, c * N, c * N, at->pairs * N, c * N, N, size,
                                size, size, (c + at->pairs + TILE) * width, size * c, width, 2 * c,
                                c * c, size * size, width * width, at->blocks, at->blocks,
                                at->blocks, 2 * square};
    const int count = sizeof sizes / sizeof *sizes;
    Py_ssize_t total = 0;
    for (int k = 0; k < count; k++)
        total += sizes[k];
    double *next = *numbers = calloc(total, sizeof *next);
    at->gram = malloc(at->blocks * square * sizeof *at->gram);
    at->rows = malloc(2 * at->blocks * sizeof *at->rows);
    at->first = malloc(p * sizeof *at->first);
    if (next == NULL || at->gram == NULL || at->rows == NULL || at->first == NULL)
        return 0;
    for (Py_ssize_t j = 0; j < p; j++)
        at->first[j] = j / at->X->d * c * at->X->d + j % at->X->d;
    for (int k = 0; k < count; next += sizes[k++])
        *parts[k] = next;
    return 1;
}

/* Arrays of Python ----------------------------------------------------------------------------- */

enum { START, COLUMN, VALUE, PLACE, CENTER, Y, WEIGHT, LIMIT, F, Z, B };

/* Columns and memory; then steps, which say whether they are `found` and what gap is `left`. */
static int run(Newton *at, Columns *X, Py_ssize_t entries, Py_ssize_t width, void **of, double goal,
               int *found, double *left)
{
    double *numbers = NULL;
    const Entries given = {X->N, width, of[START], of[COLUMN], of[VALUE]};
    int done = entries < 0 ? take(width, of[VALUE], of[PLACE], of[CENTER], X)
                           : choose(&given, entries, of[PLACE], X);
    if (done == DONE)
        done = reserve(at, &numbers);
    if (done == DONE) {
        memcpy(at->f, of[F], at->c * X->N * sizeof *at->f);
        *found = iterate(at, goal, of[B], left);
        done = *found < 0 ? NO_MEMORY : DONE;
    }
    free(numbers);
    free(at->gram);
    free(at->rows);
    free(at->first);
    free(X->room);
    free(X->entries.start);
    free(X->entries.column);
    free(X->entries.value);
    return done;
}

KERNEL(newton)
{
    Py_ssize_t entries, width;
    Columns X = {0};
    Newton at = {.X = &X, .intercept = get_int(args, 12)};
    const double goal = get_double(args, 13), seconds = get_double(args, 14);
    Arrays of;
    double left = NAN;
    int done, found = 0;
    if (!get_shape(args, 0, "nnnnnnn", &X.N, &X.n, &X.d, &at.c, &at.blocks, &entries, &width))
        return NULL;
    if (X.N < 1 || X.n < 1 || X.d < 1 || at.c < 1 || X.N > INT32_MAX || entries > INT32_MAX ||
        width > INT32_MAX || (at.blocks != X.n && at.blocks != X.n * at.c))
        return refuse_sizes();
    X.p = X.n * X.d, X.width = (X.p + TILE - 1) / TILE * TILE;
    at.pairs = at.c > 1 ? at.c * (at.c - 1) / 2 : 1;
    at.size = X.p * at.c, at.width = at.size / at.blocks;
    const int dense = entries < 0;
    const Py_ssize_t sizes[] = {
        dense ? 0 : X.N + 1, dense ? 0 : entries, dense ? X.N * width : entries, width, X.p,
        at.c * X.N, X.N, at.blocks, at.c * X.N, at.size, at.c};
    if (!get_arrays(args, 1, "iididdddddd", sizes, Z, &of))
        return NULL;
    at.end = now() + seconds, at.y = of.at[Y], at.a = of.at[WEIGHT], at.limit = of.at[LIMIT];
    at.center = of.at[CENTER], at.Z = of.at[Z];
    Py_BEGIN_ALLOW_THREADS
    done = run(&at, &X, entries, width, of.at, goal, &found, &left);
    Py_END_ALLOW_THREADS
    return finish(&of, done, "id", found, left);
}
