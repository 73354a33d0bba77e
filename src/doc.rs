//! Small models for the examples in the documentation.

/// `y = relu(x)` over a vector of any length, in text form.
pub const RELU_MODEL: &str = "";
