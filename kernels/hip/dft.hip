// y[outer, bins, inner, out_parts] = sum_t x[outer, t, inner, parts] * root(k t mod n), of length n, inverse with positive exponents and
// 1/n: elements beyond t are 0. roots[n, 2] are cos and sin of 2 pi k/n. Where out_parts is 1, x is one half of a spectrum and its mirror
// image, conjugate, the other half.
//
// A block of 256 threads makes a signal at a time, in f64, and up to 256 blocks share all of them. Prime factors r of n are taken one after
// the other: from transforms of length l of every (n/l)-th element, those of length l r of every (n/lr)-th, in twice n complex numbers of
// scratch per block. Bound: n * sum of r complex products, 32 n bytes read and written a factor; no shared memory.

enum { PK_DFT = 256 };

struct pk_complex {
    double re, im;
};

template <class T> PK_FN pk_complex pk_dft_at(const T *x, pk_i64 at, pk_i64 parts) {
    pk_complex z;
    z.re = (double)x[at * parts];
    z.im = parts == 2 ? (double)x[at * parts + 1] : 0.;
    return z;
}

template <class T>
PK_FN void pk_dft(const T *x, const double *roots, T *y, pk_complex *work, pk_i64 outer, pk_i64 t, pk_i64 inner, pk_i64 parts, pk_i64 n,
                  pk_i64 bins, pk_i64 out_parts, pk_i64 inverse) {
    pk_i64 signals = outer * inner, slots = signals < PK_DFT ? signals : PK_DFT, slot = pk_bid(), half = n / 2 + 1;
    double sign = inverse ? 1. : -1.;
    PK_ROLLED
    for (pk_i64 signal = slot; signal < signals; signal += slots) {
        pk_complex *now = work + slot * 2 * n, *next = now + n;
        pk_i64 o = signal / inner, i = signal % inner;
        PK_ROLLED
        for (pk_i64 k = pk_tid(); k < n; k += PK_DFT) {
            bool mirrored = out_parts == 1 && k >= half;
            pk_i64 at = mirrored ? n - k : k;
            pk_complex z = {0., 0.};
            if (at < t) z = pk_dft_at(x, (o * t + at) * inner + i, parts);
            now[k].re = z.re;
            now[k].im = mirrored ? -z.im : z.im;
        }
        PK_TILE_SYNC();
        pk_i64 l = 1, rest = n, r = 2;
        PK_ROLLED
        while (rest > 1) {
            // The least factor that is left; a rest without one up to its root is prime.
            PK_ROLLED
            while (rest % r != 0) r = r * r > rest ? rest : r + 1;
            pk_i64 m = rest / r;
            PK_ROLLED
            for (pk_i64 p = pk_tid(); p < n; p += PK_DFT) {
                pk_i64 row = p / m, j = p - row * m, step = row * m, at = 0;
                const pk_complex *from = now + row % l * m * r + j;
                double re = 0., im = 0.;
                PK_ROLLED
                for (pk_i64 v = 0; v < r; v++) {
                    double c = roots[2 * at], s = sign * roots[2 * at + 1], a = from[v * m].re, b = from[v * m].im;
                    re += a * c - b * s;
                    im += a * s + b * c;
                    at += step;
                    if (at >= n) at -= n;
                }
                next[p].re = re;
                next[p].im = im;
            }
            PK_TILE_SYNC();
            pk_complex *other = now;
            now = next;
            next = other;
            l *= r;
            rest = m;
        }
        double scale = inverse ? (double)n : 1.;
        PK_ROLLED
        for (pk_i64 k = pk_tid(); k < bins; k += PK_DFT) {
            T *to = y + ((o * bins + k) * inner + i) * out_parts;
            to[0] = (T)(now[k + PK_SHIFT].re / scale);
            if (out_parts == 2) to[1] = (T)(now[k + PK_SHIFT].im / scale);
        }
        PK_TILE_SYNC();
    }
}
#define PK_DFT_KERNEL(NAME, T)                                                                                               \
    PK_KERNEL(256)                                                                                                     \
    NAME(const T *x, const double *roots, T *y, pk_complex *work, pk_i64 outer, pk_i64 t, pk_i64 inner, pk_i64 parts,  \
         pk_i64 n, pk_i64 bins, pk_i64 out_parts, pk_i64 inverse) {                                                    \
        pk_dft<T>(x, roots, y, work, outer, t, inner, parts, n, bins, out_parts, inverse);                             \
    }
PK_DFT_KERNEL(hip_ep_dft_f32, float)
PK_DFT_KERNEL(hip_ep_dft_f64, double)
