//! Attributes and shapes that have no meaning: refused by the shape rule where they are constants, by a guard where the run knows them.

use super::Extents;
use super::indices::with;

/// What the rule or its guards say, with extents and elements known and not.
fn said(op: &str, text: &str) -> [Result<(), String>; 3] {
    [Extents::Constant, Extents::Symbolic, Extents::Computed].map(|extents| {
        with(op, text, extents, |def, case, mut p| {
            let (_, guards) = p.infer(def, case).map_err(|e| e.to_string())?;
            p.check_guards(&guards)
        })
    })
}

fn check(op: &str, good: &[&str], bad: &[&str]) {
    for text in good {
        assert!(said(op, text).iter().all(Result::is_ok), "{op} {text}: {:?}", said(op, text));
    }
    for text in bad {
        assert!(said(op, text).iter().all(Result::is_err), "{op} {text}: {:?}", said(op, text));
    }
}

#[test]
fn groups_divide_the_channels() {
    let of = |group: i64| format!("[1,4,2,2];[4,2,2,2] kernel_shape=[2,2] group={group}");
    let (good, bad) = ([1, 2, 4].map(of), [3, 5, 7, 8].map(of));
    check("ConvTranspose", &good.each_ref().map(String::as_str), &bad.each_ref().map(String::as_str));
    let e = said("ConvTranspose", &bad[0])[0].clone().unwrap_err();
    assert!(e.starts_with("ConvTranspose: 4 image channels in 3 groups"), "{e}");
    check("Conv", &["[1,4,5];[6,2,3] kernel_shape=[3] group=2"], &["[1,4,5];[5,2,3] kernel_shape=[3] group=2"]);
}

/// Whoever gives the weight when the run starts gives the window that the model states.
#[test]
fn a_weight_has_the_window_that_the_model_states() {
    let of = |window: &str| format!("[1,2,5,5];[2,2,3,2] kernel_shape=[{window}]");
    let (good, bad) = (of("3,2"), ["2,2", "3,3", "2,3"].map(of));
    for op in ["Conv", "ConvTranspose"] {
        check(op, &[&good], &bad.each_ref().map(String::as_str));
    }
}

#[test]
fn pools_do_not_crop() {
    for op in ["MaxPool", "AveragePool"] {
        let bad = ["[1,1,5] kernel_shape=[3] pads=[-1,0]", "[1,1,5] kernel_shape=[3] pads=[1,-1]"];
        check(op, &["[1,1,5] kernel_shape=[3] pads=[0,1]"], &bad);
        let e = said(op, bad[0])[0].clone().unwrap_err();
        assert!(e.starts_with(&format!("{op}: a pad of -1 along axis 2 is negative")), "{e}");
    }
}

#[test]
fn reshapes_have_one_meaning() {
    let good = ["[2,6];i64[2]{-1,4}", "[2,6];i64[2]{0,6}", "[0,3];i64[2]{0,-1}", "[0,3];i64[2]{3,0} allowzero=1"];
    let bad = [
        "[2,6];i64[2]{-7,4}",
        "[2,6];i64[2]{3,-2}",
        "[1,1];i64[2]{-1,-1}",
        "[0,3];i64[2]{0,-1} allowzero=1",
        "[0,3];i64[2]{-1,0} allowzero=1",
    ];
    check("Reshape", &good, &bad);
    // A -1 that the model has beside an element that the run knows.
    let beside = |text: &str| {
        with("Reshape", text, Extents::Computed, |def, case, mut p| {
            let minus = p.dims.constant(-1);
            p.operands[1].as_mut().unwrap().values.as_mut().unwrap()[1] = minus;
            let (_, guards) = p.infer(def, case).map_err(|e| e.to_string())?;
            p.check_guards(&guards)
        })
    };
    assert_eq!(beside("[2,6];i64[2]{4,-1}"), Ok(()));
    assert_eq!(beside("[0,3];i64[2]{0,-1}"), Ok(()));
    for text in ["[2,6];i64[2]{-1,-1}", "[2,6];i64[2]{-4,-1}", "[0,3];i64[2]{0,-1} allowzero=1"] {
        assert!(beside(text).is_err(), "{text}");
    }
}

/// Heads, masks, pasts and what says how much of a buffer is taken fit together.
#[test]
fn attentions_fit_together() {
    let of = |rest: &str| format!("[2,3,8];[2,3,8];[2,3,8];{rest} num_heads=2");
    let good = ["_;i32[2]{3,1}", "_;i32[8]{3,1}", "_;_;_;[2,2,5,4];[2,2,5,4];i32[1]{2}"].map(of);
    let bad = [
        "_;i32[5]{3,1}",
        "_;i32[2,3]{1};_;[2,2,5,4];[2,2,5,4]",
        "_;_;_;[2,2,5,4]",
        "_;_;[2,2,3,5]",
        "[23]",
        "_;_;_;[2,2,4,4];[2,2,4,4];i32[1]{2}",
        "_;_;_;[2,2,4,4];[2,2,4,4];_;i32[1,2,4]{0}",
    ];
    let bad: Vec<String> = bad.map(of).into_iter().chain([of("_").replace("heads=2", "heads=3")]).collect();
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    check("com.microsoft:MultiHeadAttention", &good.each_ref().map(String::as_str), &bad);
    let of = |rest: &str| format!("[2,3,2];[2,24];[24];{rest} num_heads=2");
    let good = ["i32[2]{3}", "i32[4]{3}", "i32[8]{3}", "i32[2,1]{1}"].map(of);
    let bad = [
        "i32[5]{3}",
        "i32[2,2]{1}",
        "i32[2,1,2,2]{1}",
        "_;[2,2,2,4,5] outs=2",
        "_;[2,2,2,4,4] past_present_share_buffer=1",
        "_ qkv_hidden_sizes=[8,4,12]",
        "_ qkv_hidden_sizes=[4,4,16] outs=2",
        "_ do_rotary=1 rotary_embedding_dim=3",
    ]
    .map(of);
    check("com.microsoft:Attention", &good.each_ref().map(String::as_str), &bad.each_ref().map(String::as_str));
    let fill = "[4,8];[4,8];[4,8];_;i32[2,3]{0,1,3,4,2,5};i32[3]{0,2,4} num_heads=2 mask_filter_value=";
    let (good, bad) = (format!("{fill}-10000"), format!("{fill}-3"));
    check("com.microsoft:PackedMultiHeadAttention", &[&good], &[&bad]);
}

/// Attributes of com.microsoft that name something else than what is known: never ignored.
#[test]
fn fused_operators_say_what_they_do_not_know() {
    let refused = [
        ("FusedGemm", "[3,4];[4,5] activation=Swoosh", "activation \"Swoosh\" is none of Relu"),
        ("FusedGemm", "[3,4];[4,5] activation=ScaledTanh activation_alpha=1", "needs its parameter beta"),
        ("FusedConv", "[1,1,6];[2,1,3] activation=Clip activation_params=[1]", "needs its parameter max"),
        ("FusedConv", "[1,1,6];[2,1,3] activation=Relu activation_params=[1]", "and activation \"Relu\" takes 0"),
        ("GroupNorm", "[2,3,4];[4];[4] groups=2 activation=2", "activation=2 is neither 0 (none) nor 1 (SiLU)"),
        ("CausalConvWithState", "[1,2,4];[2,1,3] state_window=2", "state_window=2 is not supported, only 0"),
        ("MRotaryEmbedding", "[1,4,16] mrope_section=[1,1]", "mrope_section [1, 1] is not three numbers"),
        ("CDist", "[3,5];[4,5] metric=cosine", "metric \"cosine\" is neither sqeuclidean nor euclidean"),
        ("CropAndResize", "[1,1,5,6] mode=bicubic", "mode \"bicubic\" is neither bilinear nor nearest"),
        ("GatedAdd", "[2,4];[2,4];[2,3];[3,1]", "gate_weight is not supported"),
    ];
    for (op, text, why) in refused {
        let def = super::families().find(|d| d.name == op && d.domain == "com.microsoft").unwrap();
        let case = crate::cases::parse(def, text).unwrap();
        let types = super::assignments(def).swap_remove(0);
        let mut p = super::prepare(def, &case, &types, Extents::Constant, 1).unwrap();
        let e = p.infer(def, &case).unwrap_err();
        assert_eq!(e.kind(), tensor::ErrorKind::Unsupported, "{op} {text}");
        assert!(e.message().starts_with(op) && e.message().contains(why), "{op} {text}: {e}");
    }
}
