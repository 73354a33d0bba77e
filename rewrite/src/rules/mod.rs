//! The rules, one table per algebra. Each line is an equation; the comment above it says it in mathematics and what happens
//! to special values. Patterns are explained in [`crate::pattern`], cases in [`crate::check`].

pub mod activation;
pub mod arith;
pub mod attention;
pub mod conv;
pub mod layout;
pub mod matmul;
pub mod norm;
pub mod quant;
pub mod rotary;

use crate::rule::Rule;

/// Every built-in rule, in the order in which they are searched.
pub fn all() -> Vec<Rule> {
    [
        arith::RULES,
        layout::RULES,
        conv::RULES,
        norm::RULES,
        activation::RULES,
        attention::RULES,
        matmul::RULES,
        quant::RULES,
        rotary::RULES,
    ]
    .concat()
}
