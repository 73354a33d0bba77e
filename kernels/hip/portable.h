// What the kernels are written in: one source for clang (HIP and CUDA mode), hipRTC and NVRTC, without a vendor header.
//
// PK_AMD or PK_NV is set; PK_RTC where a run-time compiler brings its own words. Block sizes are fixed at compile time and grid
// sizes are never asked for, so that kernels have no hidden arguments.

#if defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__AMDGCN__)
#define PK_AMD 1
#else
#define PK_NV 1
#endif
#if defined(__HIPCC_RTC__) || defined(__CUDACC_RTC__)
#define PK_RTC 1
#endif
#if defined(PK_RTC)
#define PK_IN __device__ __forceinline__
#else
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define PK_IN __attribute__((device)) inline __attribute__((always_inline))
#endif
#define PK_FN static PK_IN
#if defined(PK_AMD)
#define PK_KERNEL(block)                                                                                               \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(block, block))) void
#elif defined(PK_RTC)
#define PK_KERNEL(block) extern "C" __global__ __launch_bounds__(block) void
#else
#define PK_KERNEL(block) extern "C" __attribute__((global)) __attribute__((launch_bounds(block))) void
#endif
#define PK_SHARED __shared__ __attribute__((aligned(16)))
#define PK_UNROLL _Pragma("unroll")
#define PK_UNROLL_4 _Pragma("unroll 4")
#if defined(__clang__)
#define PK_ROLLED _Pragma("nounroll")
#else
#define PK_ROLLED _Pragma("unroll 1")
#endif

typedef unsigned char pk_u8;
typedef unsigned short pk_u16;
typedef int pk_i32;
typedef unsigned int pk_u32;
typedef long long pk_i64;
typedef unsigned long long pk_u64;
// 8 and 16 bytes that are moved at once.
struct __attribute__((aligned(8))) pk_u2 {
    pk_u32 v[2];
};
struct __attribute__((aligned(16))) pk_u4 {
    pk_u32 v[4];
};

// ---- Indices, barrier, wave.
#if defined(PK_AMD)
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
#define PK_WAVE 32
#else
#define PK_WAVE 64
#endif
PK_FN pk_u32 pk_tid() { return __builtin_amdgcn_workitem_id_x(); }
PK_FN pk_u32 pk_bid() { return __builtin_amdgcn_workgroup_id_x(); }
PK_FN pk_u32 pk_bid_y() { return __builtin_amdgcn_workgroup_id_y(); }
PK_FN pk_u32 pk_bid_z() { return __builtin_amdgcn_workgroup_id_z(); }
PK_FN void pk_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
PK_FN pk_u32 pk_lane() {
#if PK_WAVE == 64
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
#else
    return __builtin_amdgcn_mbcnt_lo(~0u, 0);
#endif
}
PK_FN pk_i32 pk_shfl(pk_i32 v, pk_u32 lane) { return __builtin_amdgcn_ds_bpermute((pk_i32)(lane << 2), v); }
// One bit for each lane of the wave.
PK_FN pk_u64 pk_ballot(bool p) {
#if !__has_builtin(__builtin_amdgcn_ballot_w32) && !__has_builtin(__builtin_amdgcn_ballot_w64)
    // Run-time compilers before ROCm 5.3: 33 is "not equal".
    return __builtin_amdgcn_uicmp((pk_u32)p, 0, 33);
#elif PK_WAVE == 64
    return __builtin_amdgcn_ballot_w64(p);
#else
    return __builtin_amdgcn_ballot_w32(p);
#endif
}
PK_FN pk_u32 pk_popcount(pk_u64 x) { return (pk_u32)__builtin_popcountll(x); }
#else
#define PK_WAVE 32
#if defined(PK_RTC)
PK_FN pk_u32 pk_tid() { return threadIdx.x; }
PK_FN pk_u32 pk_bid() { return blockIdx.x; }
PK_FN pk_u32 pk_bid_y() { return blockIdx.y; }
PK_FN pk_u32 pk_bid_z() { return blockIdx.z; }
#else
PK_FN pk_u32 pk_tid() { return __nvvm_read_ptx_sreg_tid_x(); }
PK_FN pk_u32 pk_bid() { return __nvvm_read_ptx_sreg_ctaid_x(); }
PK_FN pk_u32 pk_bid_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
PK_FN pk_u32 pk_bid_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
#endif
PK_FN void pk_sync() { __syncthreads(); }
PK_FN pk_u32 pk_lane() { return pk_tid() & 31; }
PK_FN pk_i32 pk_shfl(pk_i32 v, pk_u32 lane) {
    pk_i32 r;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane));
    return r;
}
PK_FN pk_u64 pk_ballot(bool p) {
    pk_u32 r;
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %1, 0; vote.sync.ballot.b32 %0, q, 0xffffffff; }" : "=r"(r) : "r"((pk_u32)p));
    return r;
}
PK_FN pk_u32 pk_popcount(pk_u64 x) {
    pk_u32 r;
    asm("popc.b64 %0, %1;" : "=r"(r) : "l"(x));
    return r;
}
#endif

// ---- f32 bits and arithmetic. Nothing here is approximate: division and fma are correctly rounded.
#if defined(PK_RTC) && defined(PK_NV)
PK_FN float pk_float(pk_u32 u) { return __uint_as_float(u); }
PK_FN pk_u32 pk_bits(float f) { return __float_as_uint(f); }
PK_FN float pk_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#else
PK_FN float pk_float(pk_u32 u) { return __builtin_bit_cast(float, u); }
PK_FN pk_u32 pk_bits(float f) { return __builtin_bit_cast(pk_u32, f); }
PK_FN float pk_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif
#define PK_INF pk_float(0x7f800000u)
PK_FN float pk_abs(float x) { return pk_float(pk_bits(x) & 0x7fffffffu); }
PK_FN float pk_copysign(float x, float sign) {
    return pk_float((pk_bits(x) & 0x7fffffffu) | (pk_bits(sign) & 0x80000000u));
}
PK_FN float pk_shfl_xor(float v, pk_u32 mask) {
    return pk_float((pk_u32)pk_shfl((pk_i32)pk_bits(v), pk_lane() ^ mask));
}
// Keeps NaN.
PK_FN float pk_clamp(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }

// e^x = 2^n p(r), |r| <= ln 2 / 2: relative error below 2.5e-7, denormal results kept.
PK_FN float pk_exp(float x) {
    float c = pk_clamp(x, -105.f, 89.5f);
    // Adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits; this also holds for NaN.
    float t = pk_fma(c, 1.44269504f, 12582912.f);
    float nf = t - 12582912.f;
    pk_i32 n = (pk_i32)(pk_bits(t) - 0x4b400000u);
    float r = pk_fma(-nf, 0.693359375f, c);
    r = pk_fma(-nf, -2.12194440e-4f, r);
    float p = pk_fma(1.38888890e-3f, r, 8.33333377e-3f);
    p = pk_fma(p, r, 4.16666679e-2f);
    p = pk_fma(p, r, 1.66666672e-1f);
    p = pk_fma(p, r, 0.5f);
    p = pk_fma(p, r, 1.f);
    p = pk_fma(p, r, 1.f);
    // 2^n in two factors, so that neither leaves the normal range.
    pk_i32 half = n >> 1;
    float lo = pk_float((pk_u32)(half + 127) << 23), hi = pk_float((pk_u32)(n - half + 127) << 23);
    return p * lo * hi;
}
PK_FN float pk_sigmoid(float x) { return 1.f / (1.f + pk_exp(-x)); }
// Odd polynomial near 0, else 1 - 2/(e^2|x| + 1): error below 4e-7.
PK_FN float pk_tanh(float x) {
    float a = pk_abs(x), z = x * x;
    float s = pk_fma(z, pk_fma(z, pk_fma(z, pk_fma(z, 0.0218694881f, -0.0539682545f), 0.133333340f), -0.333333343f), 1.f);
    float large = pk_copysign(1.f - 2.f / (pk_exp(2.f * a) + 1.f), x);
    return a < 0.35f ? x * s : large;
}
// x P(x^2) / Q(x^2), 6 ulp; from 3.92 on +-1 is nearest, of which the fit comes one ulp short.
PK_FN float pk_erf(float x) {
    float t = pk_clamp(x, -4.f, 4.f), z = t * t;
    float p = pk_fma(z, -1.320162041e-8f, 4.684642805e-6f);
    p = pk_fma(z, p, 3.796051449e-4f);
    p = pk_fma(z, p, 3.849653648e-3f);
    p = pk_fma(z, p, 5.431698348e-2f);
    p = pk_fma(z, p, 1.852045820e-1f);
    p = pk_fma(z, p, 1.128379169f);
    float q = pk_fma(z, 6.310932187e-5f, 1.307573545e-3f);
    q = pk_fma(z, q, 1.546216062e-2f);
    q = pk_fma(z, q, 1.139588825e-1f);
    q = pk_fma(z, q, 4.974667009e-1f);
    q = pk_fma(z, q, 1.f);
    return pk_abs(x) >= 3.92f ? pk_copysign(1.f, x) : pk_clamp(t * p / q, -1.f, 1.f);
}

// ---- f16: 16 bits in memory, f32 in registers.
struct pk_half {
    pk_u16 v;
};
#if defined(PK_AMD)
PK_FN float pk_get(pk_half h) { return (float)__builtin_bit_cast(_Float16, h.v); }
PK_FN void pk_set(pk_half *p, float f) { p->v = __builtin_bit_cast(pk_u16, (_Float16)f); }
#else
PK_FN float pk_get(pk_half h) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h.v));
    return r;
}
PK_FN void pk_set(pk_half *p, float f) {
    pk_u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(f));
    p->v = r;
}
#endif
PK_FN float pk_get(float f) { return f; }
PK_FN void pk_set(float *p, float f) { *p = f; }

// ---- Activations, by the codes of the catalog.
PK_FN float pk_activate(pk_i32 code, float x, float lo, float hi) {
    switch (code) {
    case 1: return x < 0.f ? 0.f : x;
    case 2: return 0.5f * x * (1.f + pk_erf(x * 0.707106781f));
    case 3: return 0.5f * x * (1.f + pk_tanh(0.797884561f * pk_fma(0.044715f, x * x * x, x)));
    case 4: return x * pk_sigmoid(x);
    case 5: return pk_sigmoid(x);
    case 6: return pk_tanh(x);
    case 7: return pk_clamp(x, lo, hi);
    case 8: return pk_clamp(pk_fma(lo, x, hi), 0.f, 1.f);
    default: return x;
    }
}

// ---- Matrix unit: one wave multiplies 16x16x16 f16 with sums in f32.
//
// Both operands are read as rows with k contiguous: a [16, k] and b transposed [16, k]. A fragment is what a lane holds of 16 rows and
// 16 k; an accumulator is what it holds of the 16x16 result: element i is (pk_acc_row(i), pk_acc_col(i)).
#if defined(PK_AMD)
typedef float pk_f4 __attribute__((ext_vector_type(4)));
typedef float pk_f8 __attribute__((ext_vector_type(8)));
typedef _Float16 pk_h4 __attribute__((ext_vector_type(4)));
typedef _Float16 pk_h8 __attribute__((ext_vector_type(8)));
typedef _Float16 pk_h16 __attribute__((ext_vector_type(16)));
#if defined(__GFX12__)
#define PK_MMA 12
typedef pk_h8 pk_frag;
typedef pk_f8 pk_acc;
enum { PK_ACC = 8 };
// Lane l: row l % 16, k from 8 (l / 16).
PK_FN pk_frag pk_frag_a(const pk_half *p, pk_u32 ld) {
    pk_u32 l = pk_lane();
    return __builtin_bit_cast(pk_h8, *(const pk_u4 *)(p + (l & 15) * ld + (l >> 4) * 8));
}
PK_FN pk_frag pk_frag_b(const pk_half *p, pk_u32 ld) { return pk_frag_a(p, ld); }
PK_FN pk_acc pk_mma(pk_frag a, pk_frag b, pk_acc c) {
    return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
}
PK_FN pk_u32 pk_acc_row(pk_u32 i) { return (pk_lane() >> 4) * 8 + i; }
PK_FN pk_u32 pk_acc_col(pk_u32) { return pk_lane() & 15; }
#elif defined(__GFX11__)
#define PK_MMA 11
typedef pk_h16 pk_frag;
typedef pk_f8 pk_acc;
enum { PK_ACC = 8 };
struct pk_two {
    pk_u4 a, b;
};
// Lane l: row l % 16, every k; both halves of the wave hold the same.
PK_FN pk_frag pk_frag_a(const pk_half *p, pk_u32 ld) {
    const pk_u4 *q = (const pk_u4 *)(p + (pk_lane() & 15) * ld);
    pk_two t = {q[0], q[1]};
    return __builtin_bit_cast(pk_h16, t);
}
PK_FN pk_frag pk_frag_b(const pk_half *p, pk_u32 ld) { return pk_frag_a(p, ld); }
PK_FN pk_acc pk_mma(pk_frag a, pk_frag b, pk_acc c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c); }
PK_FN pk_u32 pk_acc_row(pk_u32 i) { return i * 2 + (pk_lane() >> 4); }
PK_FN pk_u32 pk_acc_col(pk_u32) { return pk_lane() & 15; }
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) ||   \
    defined(__gfx950__)
#define PK_MMA 9
typedef pk_h4 pk_frag;
typedef pk_f4 pk_acc;
enum { PK_ACC = 4 };
// Lane l: row l % 16, k from 4 (l / 16).
PK_FN pk_frag pk_frag_a(const pk_half *p, pk_u32 ld) {
    pk_u32 l = pk_lane();
    return __builtin_bit_cast(pk_h4, *(const pk_u2 *)(p + (l & 15) * ld + (l >> 4) * 4));
}
PK_FN pk_frag pk_frag_b(const pk_half *p, pk_u32 ld) { return pk_frag_a(p, ld); }
PK_FN pk_acc pk_mma(pk_frag a, pk_frag b, pk_acc c) { return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0); }
PK_FN pk_u32 pk_acc_row(pk_u32 i) { return (pk_lane() >> 4) * 4 + i; }
PK_FN pk_u32 pk_acc_col(pk_u32) { return pk_lane() & 15; }
#endif
#else
#define PK_MMA 80
struct pk_frag {
    pk_u32 v[4];
};
struct pk_acc {
    float v[8];
    __device__ float &operator[](pk_u32 i) { return v[i]; }
};
enum { PK_ACC = 8 };
PK_FN pk_u32 pk_pair(const pk_half *p) { return *(const pk_u32 *)p; }
PK_FN pk_frag pk_frag_a(const pk_half *p, pk_u32 ld) {
    pk_u32 l = pk_lane();
    const pk_half *q = p + (l >> 2) * ld + (l & 3) * 2;
    pk_frag f = {{pk_pair(q), pk_pair(q + 8 * ld), pk_pair(q + 8), pk_pair(q + 8 * ld + 8)}};
    return f;
}
PK_FN pk_frag pk_frag_b(const pk_half *p, pk_u32 ld) {
    pk_u32 l = pk_lane();
    const pk_half *q = p + (l >> 2) * ld + (l & 3) * 2;
    pk_frag f = {{pk_pair(q), pk_pair(q + 8), pk_pair(q + 8 * ld), pk_pair(q + 8 * ld + 8)}};
    return f;
}
// Two m16n8k16.
PK_FN pk_acc pk_mma(pk_frag a, pk_frag b, pk_acc c) {
    PK_UNROLL
    for (int n = 0; n < 2; n++) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c.v[4 * n]), "+f"(c.v[4 * n + 1]), "+f"(c.v[4 * n + 2]), "+f"(c.v[4 * n + 3])
                     : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[2 * n]), "r"(b.v[2 * n + 1]));
    }
    return c;
}
PK_FN pk_u32 pk_acc_row(pk_u32 i) { return (pk_lane() >> 2) + ((i & 2) ? 8 : 0); }
PK_FN pk_u32 pk_acc_col(pk_u32 i) { return (i >> 2) * 8 + (pk_lane() & 3) * 2 + (i & 1); }
#endif
#if defined(PK_MMA)
PK_FN pk_acc pk_acc_zero() {
    pk_acc c;
    PK_UNROLL
    for (pk_u32 i = 0; i < PK_ACC; i++) c[i] = 0.f;
    return c;
}
#endif
