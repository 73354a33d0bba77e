//! A thin layer over the LLVM builder: one short method an instruction, so that emitters read as formulas.
//!
//! Instructions carry no fast-math flags and nothing contracts on its own: a value has the same bits in a vector body, in its scalar
//! remainder and in the interpreter. Polynomials ask for [`Em::fma`], which is fused where the target has the instruction.

use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::basic_block::BasicBlock;
use inkwell::builder::{Builder, BuilderError};
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{BasicType, BasicTypeEnum, FloatType, FunctionType, IntType, PointerType};
use inkwell::values::{
    BasicMetadataValueEnum, BasicValue, BasicValueEnum, FastMathFlags, FloatValue, FunctionValue, InstructionValue,
    IntValue, PhiValue, PointerValue,
};
use inkwell::{AddressSpace, FloatPredicate, IntPredicate};
use kernels::gpu::Platform;

/// A float value.
pub type F<'c> = FloatValue<'c>;
/// An integer value.
pub type I<'c> = IntValue<'c>;

/// What the target's back end can do without a library call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Conversion of binary32 to binary16 is an instruction.
    pub f16_convert: bool,
    /// Rounding to an integral float is an instruction.
    pub round: bool,
    /// The GPU platform of the target: `fma` is an instruction, tables lie in global memory, helpers are inlined (a call needs a stack).
    pub gpu: Option<Platform>,
    /// Results are kept as f16 or bf16 only: an error of 2⁻¹⁸ does not show in them.
    pub half: bool,
}

/// The emitter: context, module and a builder that stands in a block.
pub struct Em<'a, 'c> {
    /// Owner of types and metadata.
    pub ctx: &'c Context,
    /// Where functions go.
    pub m: &'a Module<'c>,
    /// The builder.
    pub b: Builder<'c>,
    /// What the target can do.
    pub caps: Caps,
}

fn ok<T>(r: Result<T, BuilderError>) -> T {
    // The builder fails only when it stands in no block or gets values of other types than it was promised: a bug here.
    r.expect("LLVM builder: wrong use by the emitter")
}

macro_rules! int_ops {
    ($($name:ident = $build:ident;)*) => { $(
        #[doc = concat!("`", stringify!($build), "`.")]
        pub fn $name(&self, a: I<'c>, b: I<'c>) -> I<'c> { ok(self.b.$build(a, b, "")) }
    )* };
}
macro_rules! float_ops {
    ($($name:ident = $build:ident;)*) => { $(
        #[doc = concat!("`", stringify!($build), "`.")]
        pub fn $name(&self, a: F<'c>, b: F<'c>) -> F<'c> { ok(self.b.$build(a, b, "")) }
    )* };
}

impl<'a, 'c> Em<'a, 'c> {
    /// An emitter into `m`.
    pub fn new(ctx: &'c Context, m: &'a Module<'c>, caps: Caps) -> Self {
        Em { ctx, m, b: ctx.create_builder(), caps }
    }

    /// i1.
    pub fn i1(&self) -> IntType<'c> {
        self.ctx.bool_type()
    }
    /// i8.
    pub fn i8(&self) -> IntType<'c> {
        self.ctx.i8_type()
    }
    /// i16.
    pub fn i16(&self) -> IntType<'c> {
        self.ctx.i16_type()
    }
    /// i32.
    pub fn i32(&self) -> IntType<'c> {
        self.ctx.i32_type()
    }
    /// i64.
    pub fn i64(&self) -> IntType<'c> {
        self.ctx.i64_type()
    }
    /// binary32.
    pub fn f32(&self) -> FloatType<'c> {
        self.ctx.f32_type()
    }
    /// binary64.
    pub fn f64(&self) -> FloatType<'c> {
        self.ctx.f64_type()
    }
    /// Pointer in the default address space.
    pub fn ptr(&self) -> PointerType<'c> {
        self.ctx.ptr_type(AddressSpace::default())
    }
    /// An i64 constant.
    pub fn c64(&self, v: i64) -> I<'c> {
        self.i64().const_int(v.cast_unsigned(), true)
    }
    /// An i32 constant.
    pub fn c32(&self, v: u32) -> I<'c> {
        self.i32().const_int(u64::from(v), false)
    }
    /// An integer constant of the type of `like`.
    pub fn ik(&self, like: I<'c>, v: i64) -> I<'c> {
        like.get_type().const_int(v.cast_unsigned(), true)
    }
    /// A float constant of the type of `like`.
    pub fn fk(&self, like: F<'c>, v: f64) -> F<'c> {
        like.get_type().const_float(v)
    }
    /// Whether a float is binary64.
    pub fn is64(&self, x: F<'c>) -> bool {
        x.get_type() == self.f64()
    }

    int_ops! {
        add = build_int_add; sub = build_int_sub; mul = build_int_mul; nsw_add = build_int_nsw_add; nsw_mul = build_int_nsw_mul;
        sdiv_raw = build_int_signed_div; srem_raw = build_int_signed_rem; udiv_raw = build_int_unsigned_div; urem_raw = build_int_unsigned_rem;
        and = build_and; or = build_or; xor = build_xor; shl = build_left_shift;
    }
    float_ops! {
        fadd = build_float_add; fsub = build_float_sub; fmul = build_float_mul; fdiv = build_float_div;
    }
    /// Logical shift right.
    pub fn lshr(&self, a: I<'c>, b: I<'c>) -> I<'c> {
        ok(self.b.build_right_shift(a, b, false, ""))
    }
    /// Arithmetic shift right.
    pub fn ashr(&self, a: I<'c>, b: I<'c>) -> I<'c> {
        ok(self.b.build_right_shift(a, b, true, ""))
    }
    /// Bitwise complement.
    pub fn not(&self, a: I<'c>) -> I<'c> {
        ok(self.b.build_not(a, ""))
    }
    /// Two's complement negation, wrapping.
    pub fn neg(&self, a: I<'c>) -> I<'c> {
        ok(self.b.build_int_neg(a, ""))
    }
    /// Sign flip.
    pub fn fneg(&self, a: F<'c>) -> F<'c> {
        ok(self.b.build_float_neg(a, ""))
    }
    /// Integer comparison.
    pub fn icmp(&self, p: IntPredicate, a: I<'c>, b: I<'c>) -> I<'c> {
        ok(self.b.build_int_compare(p, a, b, ""))
    }
    /// Float comparison.
    pub fn fcmp(&self, p: FloatPredicate, a: F<'c>, b: F<'c>) -> I<'c> {
        ok(self.b.build_float_compare(p, a, b, ""))
    }
    /// Whether `a` is NaN.
    pub fn is_nan(&self, a: F<'c>) -> I<'c> {
        self.fcmp(FloatPredicate::UNO, a, a)
    }
    /// `c ? a : b`.
    pub fn sel<T: BasicValue<'c> + Into<BasicValueEnum<'c>> + Copy>(&self, c: I<'c>, a: T, b: T) -> BasicValueEnum<'c> {
        if c.is_const() {
            return if c.get_zero_extended_constant() == Some(0) { b.into() } else { a.into() };
        }
        ok(self.b.build_select(c, a, b, ""))
    }
    /// `c ? a : b` of floats.
    pub fn fsel(&self, c: I<'c>, a: F<'c>, b: F<'c>) -> F<'c> {
        self.sel(c, a, b).into_float_value()
    }
    /// `c ? a : b` of integers.
    pub fn isel(&self, c: I<'c>, a: I<'c>, b: I<'c>) -> I<'c> {
        self.sel(c, a, b).into_int_value()
    }
    /// `x > hi ? hi : x < lo ? lo : x`; NaN stays.
    pub fn fclamp(&self, x: F<'c>, lo: f64, hi: f64) -> F<'c> {
        let (lo, hi) = (self.fk(x, lo), self.fk(x, hi));
        if self.caps.gpu == Some(Platform::Cuda) && !self.is64(x) {
            // One instruction each, which keeps NaN.
            return self.fintr2("llvm.maximum", self.fintr2("llvm.minimum", x, hi), lo);
        }
        let x = self.fsel(self.fcmp(FloatPredicate::OGT, x, hi), hi, x);
        self.fsel(self.fcmp(FloatPredicate::OLT, x, lo), lo, x)
    }
    /// The bits of a float.
    pub fn bits(&self, x: F<'c>) -> I<'c> {
        let t = if x.get_type() == self.ctx.f16_type() {
            self.i16()
        } else if self.is64(x) {
            self.i64()
        } else {
            self.i32()
        };
        ok(self.b.build_bit_cast(x, t, "")).into_int_value()
    }
    /// A float from its bits.
    pub fn from_bits(&self, x: I<'c>) -> F<'c> {
        let t = match x.get_type().get_bit_width() {
            16 => self.ctx.f16_type(),
            32 => self.f32(),
            _ => self.f64(),
        };
        ok(self.b.build_bit_cast(x, t, "")).into_float_value()
    }
    /// To another width, sign extended.
    pub fn sext(&self, a: I<'c>, t: IntType<'c>) -> I<'c> {
        ok(self.b.build_int_s_extend(a, t, ""))
    }
    /// To another width, zero extended.
    pub fn zext(&self, a: I<'c>, t: IntType<'c>) -> I<'c> {
        ok(self.b.build_int_z_extend(a, t, ""))
    }
    /// The low bits.
    pub fn trunc(&self, a: I<'c>, t: IntType<'c>) -> I<'c> {
        ok(self.b.build_int_truncate(a, t, ""))
    }
    /// To a wider float.
    pub fn fpext(&self, a: F<'c>, t: FloatType<'c>) -> F<'c> {
        ok(self.b.build_float_ext(a, t, ""))
    }
    /// To a narrower float, round to nearest even.
    pub fn fptrunc(&self, a: F<'c>, t: FloatType<'c>) -> F<'c> {
        ok(self.b.build_float_trunc(a, t, ""))
    }
    /// Integer to float.
    pub fn itof(&self, a: I<'c>, signed: bool, t: FloatType<'c>) -> F<'c> {
        if signed {
            ok(self.b.build_signed_int_to_float(a, t, ""))
        } else {
            ok(self.b.build_unsigned_int_to_float(a, t, ""))
        }
    }

    /// Calls an intrinsic overloaded on `tys`.
    pub fn intr(
        &self,
        name: &str,
        tys: &[BasicTypeEnum<'c>],
        args: &[BasicMetadataValueEnum<'c>],
    ) -> BasicValueEnum<'c> {
        let i = Intrinsic::find(name).unwrap_or_else(|| panic!("this LLVM has no intrinsic {name}"));
        let f = i.get_declaration(self.m, tys).unwrap_or_else(|| panic!("{name} is not overloaded like this"));
        ok(self.b.build_call(f, args, "")).try_as_basic_value().unwrap_basic()
    }
    /// Calls an intrinsic that gives nothing.
    pub fn intr_void(&self, name: &str, args: &[BasicMetadataValueEnum<'c>]) {
        let i = Intrinsic::find(name).unwrap_or_else(|| panic!("this LLVM has no intrinsic {name}"));
        let f = i.get_declaration(self.m, &[]).unwrap_or_else(|| panic!("{name} is overloaded"));
        self.call_void(f, args);
    }
    /// A float intrinsic of one argument.
    pub fn fintr(&self, name: &str, a: F<'c>) -> F<'c> {
        self.intr(name, &[a.get_type().into()], &[a.into()]).into_float_value()
    }
    /// A float intrinsic of two arguments.
    pub fn fintr2(&self, name: &str, a: F<'c>, b: F<'c>) -> F<'c> {
        self.intr(name, &[a.get_type().into()], &[a.into(), b.into()]).into_float_value()
    }
    /// `a * b + c`, fused where the target has the instruction (never a library call).
    pub fn fma(&self, a: F<'c>, b: F<'c>, c: F<'c>) -> F<'c> {
        let name = if self.caps.gpu.is_some() { "llvm.fma" } else { "llvm.fmuladd" };
        self.intr(name, &[a.get_type().into()], &[a.into(), b.into(), c.into()]).into_float_value()
    }
    /// `|a|`.
    pub fn fabs(&self, a: F<'c>) -> F<'c> {
        self.fintr("llvm.fabs", a)
    }
    /// `|a|` with the sign of `s`.
    pub fn copysign(&self, a: F<'c>, s: F<'c>) -> F<'c> {
        self.fintr2("llvm.copysign", a, s)
    }
    /// Σ cₖ·xᵏ by Horner.
    pub fn poly(&self, x: F<'c>, c: &[f64]) -> F<'c> {
        let mut it = c.iter().rev();
        let mut acc = self.fk(x, it.next().copied().unwrap_or(0.0));
        for k in it {
            acc = self.fma(acc, x, self.fk(x, *k));
        }
        acc
    }
    /// Round to nearest even, as a float.
    pub fn round_even(&self, x: F<'c>) -> F<'c> {
        if self.caps.round {
            return self.fintr("llvm.roundeven", x);
        }
        // Adding 2^(mantissa bits) leaves no fraction; from there on every float is integral.
        let big = self.fk(x, if self.is64(x) { 4_503_599_627_370_496.0 } else { 8_388_608.0 });
        let a = self.fabs(x);
        let r = self.copysign(self.fsub(self.fadd(a, big), big), x);
        self.fsel(self.fcmp(FloatPredicate::OLT, a, big), r, x)
    }
    /// Round down, as a float.
    pub fn floor(&self, x: F<'c>) -> F<'c> {
        if self.caps.round {
            return self.fintr("llvm.floor", x);
        }
        let r = self.round_even(x);
        let down = self.copysign(self.fsub(r, self.fk(x, 1.0)), r);
        let down = self.fsel(self.fcmp(FloatPredicate::OEQ, r, self.fk(x, 0.0)), self.fk(x, -1.0), down);
        self.fsel(self.fcmp(FloatPredicate::OGT, r, x), down, r)
    }
    /// Round toward zero, as a float.
    pub fn ftrunc(&self, x: F<'c>) -> F<'c> {
        if self.caps.round {
            return self.fintr("llvm.trunc", x);
        }
        self.copysign(self.floor(self.fabs(x)), x)
    }
    /// The same as a float add that may be reassociated (a reduction).
    pub fn fadd_reassoc(&self, a: F<'c>, b: F<'c>) -> F<'c> {
        let v = self.fadd(a, b);
        if let Some(i) = v.as_instruction_value() {
            i.set_fast_math_flags(FastMathFlags::AllowReassoc).expect("an add takes fast-math flags");
        }
        v
    }

    /// Address of element `idx` of `t` from `p`, within the object.
    pub fn gep<T: BasicType<'c>>(&self, t: T, p: PointerValue<'c>, idx: I<'c>) -> PointerValue<'c> {
        // SAFETY: the index is an i64 and `t` is sized; whether the address is within the buffer is the nest's contract.
        ok(unsafe { self.b.build_in_bounds_gep(t, p, &[idx], "") })
    }
    /// The same without a claim that the address is within the object: sums of part of the terms may leave it.
    pub fn gep_plain<T: BasicType<'c>>(&self, t: T, p: PointerValue<'c>, idx: I<'c>) -> PointerValue<'c> {
        // SAFETY: the index is an i64 and `t` is sized; without `inbounds` any result is defined.
        ok(unsafe { self.b.build_gep(t, p, &[idx], "") })
    }
    /// Loads a `t`.
    pub fn load<T: BasicType<'c>>(&self, t: T, p: PointerValue<'c>) -> BasicValueEnum<'c> {
        ok(self.b.build_load(t, p, ""))
    }
    /// Stores.
    pub fn store<V: BasicValue<'c>>(&self, p: PointerValue<'c>, v: V) -> InstructionValue<'c> {
        ok(self.b.build_store(p, v))
    }
    /// A stack slot of `n` elements; the caller stands in the entry block.
    pub fn alloca<T: BasicType<'c>>(&self, t: T, name: &str) -> PointerValue<'c> {
        ok(self.b.build_alloca(t, name))
    }
    /// A phi.
    pub fn phi<T: BasicType<'c>>(&self, t: T, name: &str) -> PhiValue<'c> {
        ok(self.b.build_phi(t, name))
    }
    /// Calls a function that returns a value.
    pub fn call(&self, f: FunctionValue<'c>, args: &[BasicMetadataValueEnum<'c>]) -> BasicValueEnum<'c> {
        ok(self.b.build_call(f, args, "")).try_as_basic_value().unwrap_basic()
    }
    /// Calls a function that returns nothing.
    pub fn call_void(&self, f: FunctionValue<'c>, args: &[BasicMetadataValueEnum<'c>]) {
        ok(self.b.build_call(f, args, ""));
    }
    /// Calls through a pointer; the callee returns a value.
    pub fn call_ptr(
        &self,
        ty: FunctionType<'c>,
        p: PointerValue<'c>,
        args: &[BasicMetadataValueEnum<'c>],
        name: &str,
    ) -> BasicValueEnum<'c> {
        ok(self.b.build_indirect_call(ty, p, args, name)).try_as_basic_value().unwrap_basic()
    }
    /// Address to pointer.
    pub fn to_ptr(&self, a: I<'c>) -> PointerValue<'c> {
        ok(self.b.build_int_to_ptr(a, self.ptr(), ""))
    }

    /// Pointer to address.
    pub fn from_ptr(&self, p: PointerValue<'c>) -> I<'c> {
        ok(self.b.build_ptr_to_int(p, self.i64(), ""))
    }

    /// The block the builder stands in.
    pub fn here(&self) -> BasicBlock<'c> {
        self.b.get_insert_block().expect("the emitter stands in a block")
    }
    /// A new block at the end of the current function.
    pub fn block(&self, name: &str) -> BasicBlock<'c> {
        let f = self.here().get_parent().expect("a block has a function");
        self.ctx.append_basic_block(f, name)
    }
    /// Moves to the end of `b`.
    pub fn at(&self, b: BasicBlock<'c>) {
        self.b.position_at_end(b);
    }
    /// Jump.
    pub fn br(&self, to: BasicBlock<'c>) -> InstructionValue<'c> {
        ok(self.b.build_unconditional_branch(to))
    }
    /// Branch on an i1.
    pub fn cond_br(&self, c: I<'c>, t: BasicBlock<'c>, f: BasicBlock<'c>) -> InstructionValue<'c> {
        ok(self.b.build_conditional_branch(c, t, f))
    }
    /// What two ways that end here bring along: each the block it comes from and its values.
    pub fn merge(&self, ways: [(BasicBlock<'c>, &[BasicValueEnum<'c>]); 2]) -> Vec<BasicValueEnum<'c>> {
        let [(from_a, a), (from_b, b)] = ways;
        let merged = a.iter().zip(b).map(|(x, y)| {
            let phi = self.phi(x.get_type(), "");
            phi.add_incoming(&[(x as &dyn BasicValue<'c>, from_a), (y as &dyn BasicValue<'c>, from_b)]);
            phi.as_basic_value()
        });
        merged.collect()
    }
    /// Runs `body` where `cond` holds; else the results are `start`.
    pub fn guarded<E>(
        &self,
        cond: I<'c>,
        start: &[BasicValueEnum<'c>],
        body: impl FnOnce() -> Result<Vec<BasicValueEnum<'c>>, E>,
    ) -> Result<Vec<BasicValueEnum<'c>>, E> {
        let (from, inside, after) = (self.here(), self.block("some"), self.block("after"));
        self.cond_br(cond, inside, after);
        self.at(inside);
        let out = body()?;
        let end = self.here();
        self.br(after);
        self.at(after);
        Ok(self.merge([(from, start), (end, &out)]))
    }
    /// Return.
    pub fn ret(&self, v: &dyn BasicValue<'c>) {
        ok(self.b.build_return(Some(v)));
    }

    /// Return nothing.
    pub fn ret_void(&self) {
        ok(self.b.build_return(None));
    }

    /// Adds a string attribute to a function.
    pub fn string_attr(&self, f: FunctionValue<'c>, key: &str, value: &str) {
        f.add_attribute(AttributeLoc::Function, self.ctx.create_string_attribute(key, value));
    }
    /// Adds an enum attribute.
    pub fn attr(&self, f: FunctionValue<'c>, loc: AttributeLoc, key: &str) {
        f.add_attribute(loc, self.ctx.create_enum_attribute(Attribute::get_named_enum_kind_id(key), 0));
    }
}
