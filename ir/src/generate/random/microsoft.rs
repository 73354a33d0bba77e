//! Templates of the rows of com.microsoft: operands that may be absent sometimes are, integer operands are valid, attributes have each of
//! their values.

/// Templates of a row (language: [`super::template`]), by its name.
pub fn templates(name: &str) -> &'static [&'static str] {
    TABLE.iter().find(|(n, _)| *n == name).map_or(&[], |(_, all)| all)
}

#[rustfmt::skip]
const TABLE: &[(&str, &[&str])] = &[
    ("Attention", &[
        "b:1..3 s:1..4 h:1..3 d:(1|2|4) n:h*d [b,s,i];[i,3*n];([3*n]|_);(_|i32[b]{0..s}|i32[b,s]{0..1}|i32[b,s,s]{0..1}|i32[2*b]{1..s#b,0..s-1}|i32[3*b+2]{1..s#b,0#1,s..s#b,0..s});_;(_|[(1|b),(1|h),s,s]) num_heads=h unidirectional=(0|1) scale=(0|0.1) mask_filter_value=(-10000|-2)",
        "b:1..3 s:1..4 p:1..4 h:1..3 d:(1|2|4) n:h*d [b,s,i];[i,3*n];([3*n]|_);(_|i32[b]{1..p+s}|i32[b,p+s]{0..1}|i32[b,s,p+s]{0..1});[2,b,h,p,d];(_|[(1|b),(1|h),s,p+s]) num_heads=h unidirectional=(0|1) scale=(0|0.1) outs=2",
        "b:1..3 s:1..4 h:1..3 d:1..4 e:1..4 [b,s,i];[i,2*h*d+h*e];[2*h*d+h*e];(_|i32[b,s]{0..1}) num_heads=h qkv_hidden_sizes=[h*d,h*d,h*e] unidirectional=(0|1)",
        "b:1..3 s:1..4 i:1..4 h:1..2 d:8 n:h*d [b,s,i];[i,3*n];[3*n] num_heads=h do_rotary=1 (|rotary_embedding_dim=4) unidirectional=1",
    ]),
    ("MultiHeadAttention", &[
        "b:1..3 s:1..4 t:1..5 h:1..3 d:1..4 e:1..4 [b,s,h*d];[b,t,h*d];[b,t,h*e];(_|[2*h*d+h*e]);(_|i32[b]{0..t}|i32[b,t]{0..1}|i32[b,s,t]{0..1});(_|[(1|b),(1|h),s,t]) num_heads=h unidirectional=0 (|scale=0.3) (|outs=3|outs=4)",
        "b:1..3 s:1..4 h:1..3 d:1..4 [b,s,h*d];[b,s,h*d];[b,s,h*d];(_|[3*h*d]);(_|i32[b,s]{0..1}) num_heads=h unidirectional=1 mask_filter_value=(-10000|-3)",
        "b:1..3 s:1..4 p:1..4 h:1..3 d:1..4 [b,s,h*d];[b,s,h*d];[b,s,h*d];(_|[3*h*d]);(_|i32[b,p+s]{0..1});(_|[(1|b),(1|h),s,p+s]);[b,h,p,d];[b,h,p,d] num_heads=h unidirectional=(0|1) outs=(1|3|4)",
        "b:1..3 s:1..4 h:1..3 d:1..4 [b,s,h,3,d];_;_;(_|[3*h*d]) num_heads=h outs=(1|3)",
        "b:1..3 s:1..4 t:1..4 h:1..3 d:1..4 [b,s,h*d];[b,t,h,2,d];_;(_|[3*h*d]);(_|i32[b,t]{0..1}) num_heads=h outs=(1|3)",
        "b:1..3 s:1..4 t:1..4 h:1..3 d:1..4 [b,s,h*d];[b,h,t,d];[b,h,t,d];(_|[3*h*d]);(_|i32[b,t]{0..1}) num_heads=h outs=(1|3)",
        "b:1..3 s:1..3 p:0..4 m:p+s+2 h:1..3 d:1..4 [b,s,h*d];[b,s,h*d];[b,s,h*d];_;_;_;[b,h,m,d];[b,h,m,d];i32[1]{p} num_heads=h unidirectional=(0|1) outs=3",
        "b:1..2 w:2 p:1..4 m:p+3 h:1..3 d:1..4 [b*w,1,h*d];[b*w,1,h*d];[b*w,1,h*d];_;_;_;[b*w,h,m,d];[b*w,h,m,d];i32[1]{p};i32[b,w,m]{0..w-1} num_heads=h outs=3",
    ]),
    ("DecoderMaskedMultiHeadAttention", &[
        "b:1..3 p:1..4 m:p+2 h:1..3 d:1..4 [b,1,h*d];[b,1,h*d];[b,1,h*d];(_|i32[b,p+1]{0..1});(_|[(1|b),(1|h),1,p+1]);[b,h,m,d];[b,h,m,d];i32[1]{p};_;_;(_|[3*h*d]) num_heads=h past_present_share_buffer=1 (|output_qk=1) outs=3",
        "b:1..3 p:1..4 h:1..3 d:1..4 [b,1,h*d];[b,1,h*d];[b,1,h*d];_;(_|[1,(1|h),1,p+1]);[b,h,p,d];[b,h,p,d];i32[1]{p} num_heads=h (|scale=0.4) outs=3",
        "b:1..3 t:1..5 h:1..3 d:1..4 [b,1,h*d];[b,h,t,d];[b,h,t,d];(_|i32[b,t]{0..1}) num_heads=h mask_filter_value=(-10000|-4)",
        "b:1..2 w:1..3 p:1..4 m:p+3 h:1..2 d:1..4 [b*w,1,h*d];[b*w,1,h*d];[b*w,1,h*d];_;_;[b*w,h,m,d];[b*w,h,m,d];i32[1]{p};i32[1]{w};i32[b,w,m]{0..w-1} num_heads=h past_present_share_buffer=1 outs=3",
    ]),
    ("GroupQueryAttention", &[
        "b:1..3 s:1..5 k:1..2 h:k*(1|2) d:(8|16) (p:[b,s,h*d];[b,s,k*d];[b,s,k*d]|[b,s,h*d+2*k*d];_;_);_;_;i32[b]{s-1,0..s-1};i32[(1|)]{s};(r:_;_|[s+3,d/2];[s+3,d/2]);(r:_|(_|i64[b,s]{0..2}));(_|[(1|b),(1|h),s,s]);(_|[h]) num_heads=h kv_num_heads=k (r:|do_rotary=1) (|rotary_interleaved=1) (|softcap=1.5) (|local_window_size=(1|2|3)) (|smooth_softmax=0) (|scale=0.3) outs=(1|3)",
        "b:1..3 k:1..2 h:k*(1|2) d:(8|16) t:2..7 m:(t|t+2|t-1) (p:[b,1,h*d];[b,1,k*d];[b,1,k*d]|[b,1,h*d+2*k*d];_;_);[b,k,m,d];[b,k,m,d];i32[b]{t-1,0..t-1};i32[1]{t};(r:_;_|[t+1,d/2];[t+1,d/2]);(_|_);(_|[(1|b),(1|h),1,t]);(_|[h]) num_heads=h kv_num_heads=k (r:|do_rotary=1) (|rotary_interleaved=1) (|softcap=0.5) (|local_window_size=(1|3)) outs=(1|3)",
        "s:1..4 k:1..2 h:k*(1|2|3) d:(8|16) p:1..4 t:p+s [1,s,h*d];[1,s,k*d];[1,s,k*d];[1,k,p+(c:0|s|s+1),d];[1,k,p+(c:0|s|s+1),d];i32[1]{t-1};i32[1]{t};(r:_;_|[t+1,d/2];[t+1,d/2]);_;(_|[1,(1|h),s,t]) num_heads=h kv_num_heads=k (r:|do_rotary=1) (|local_window_size=2) (|qk_output=0) outs=3",
        "b:1..3 s:1..4 k:1..2 h:k*(1|2) d:8 [b,s,h*d];[b,s,k*d];[b,s,k*d];_;_;i32[b]{s-1,0..s-1};i32[1]{s} num_heads=h kv_num_heads=k qk_output=(1|2) (|smooth_softmax=1) (|softcap=1) outs=4",
        "b:1..2 s:1..3 k:1..2 h:k*(1|2) d:8 [b,s,h*d];[b,s,k*d];[b,s,k*d];_;_;i32[b]{s-1,0..s-1};i32[1]{s};_;_;_;_;_;_;_;[d];[d] num_heads=h kv_num_heads=k qk_norm_epsilon=0.01 outs=3",
        "b:1..2 s:1..3 k:1..2 h:k*(1|2) d:8 p:1..3 t:p+s [b,s,h*d];[b,s,k*d];[b,s,k*d];i8[b,k,t,d];i8[b,k,t,d];i32[b]{t-1,s-1..t-1};i32[1]{t};_;_;_;_;_;(q:[1]{0.01..0.1}|[k*d]{0.01..0.1}|[1,k,1,d]{0.01..0.1});(q:[1]{0.01..0.1}|[k*d]{0.01..0.1}|[1,k,1,d]{0.01..0.1}) num_heads=h kv_num_heads=k k_quant_type=(q:PER_TENSOR|PER_CHANNEL|PER_CHANNEL) v_quant_type=(q:PER_TENSOR|PER_CHANNEL|PER_CHANNEL) kv_cache_bit_width=8 outs=3",
        "b:1..2 s:1..3 k:1..2 h:k*(1|2) d:8 p:1..3 t:p+s [b,s,h*d];[b,s,k*d];[b,s,k*d];u8[b,k,t,d/2];u8[b,k,t,d/2];i32[b]{t-1,s-1..t-1};i32[1]{t};_;_;_;_;_;(q:[1]{0.1..0.5}|[k*d]{0.1..0.5}|[1,k,1,d]{0.1..0.5});(q:[1]{0.1..0.5}|[k*d]{0.1..0.5}|[1,k,1,d]{0.1..0.5}) num_heads=h kv_num_heads=k k_quant_type=(q:PER_TENSOR|PER_CHANNEL|PER_CHANNEL) v_quant_type=(q:PER_TENSOR|PER_CHANNEL|PER_CHANNEL) kv_cache_bit_width=4 outs=3",
        "b:1..2 s:2..3 k:1..2 h:k*(1|2) d:8 m:7 [b,s,h*d];[b,s,k*d];[b,s,k*d];[b,k,m,d];[b,k,m,d];i32[b]{s+2,s-1..s+2};i32[1]{s+3};_;_;_;_;_;_;_;_;_;i32[b]{1..s} num_heads=h kv_num_heads=k outs=3",
        "b:1..2 k:1..2 h:k*(1|2) d:8 w:2..4 t:1..9 [b,1,h*d];[b,1,k*d];[b,1,k*d];[b,k,w+1,d];[b,k,w+1,d];i32[b]{t-1,0..t-1};i32[1]{t} num_heads=h kv_num_heads=k local_window_size=w sliding_window_cache=1 outs=3",
    ]),
    ("SparseAttention", &[
        "b:1..2 k:1..2 h:2*k d:(8|16) (p:[b,4,h*d];[b,4,k*d];[b,4,k*d]|[b,4,h*d+2*k*d];_;_);[b,k,8,d];[b,k,8,d];i32[1,5]{0,1,3,5,8};i32[1,8]{0,0,1,1,2,1,2,3};i32[1]{4};i32[b]{4};(r:_;_|[9,d/2];[9,d/2]) num_heads=h kv_num_heads=k sparse_block_size=2 (r:|do_rotary=1) (|rotary_interleaved=1) (|scale=0.3)",
        "b:1..2 k:1..2 h:2*k d:(8|16) t:2..8 [b,1,h*d];[b,1,k*d];[b,1,k*d];[b,k,8,d];[b,k,8,d];i32[2,5]{0,1,3,5,8,0,1,3,6,9};i32[2,9]{0,0,1,1,2,1,2,3,-1,0,0,1,0,1,2,0,2,3};i32[1]{t};i32[b]{t,1..t} num_heads=h kv_num_heads=k sparse_block_size=2",
    ]),
    ("PackedAttention", &[
        "s:1..4 x:0..s y:0..s h:1..3 d:(1|2|4) n:h*d [x+y+s,i];[i,3*n];[3*n];i32[3,s]{tokens:s:x:y:s};i32[4]{0,x,x+y,x+y+s};(_|[(1|3),(1|h),s,s]) num_heads=h (|scale=0.2)",
        "s:1..4 x:0..s h:1..3 d:1..4 e:1..4 [x+s,i];[i,2*h*d+h*e];[2*h*d+h*e];i32[2,s]{tokens:s:x:s};i32[3]{0,x,x+s} num_heads=h qkv_hidden_sizes=[h*d,h*d,h*e]",
    ]),
    ("PackedMultiHeadAttention", &[
        "s:1..4 x:0..s y:0..s t:x+y+s h:1..3 d:1..4 e:1..4 [t,h*d];[t,h*d];[t,h*e];(_|[2*h*d+h*e]);i32[3,s]{tokens:s:x:y:s};i32[4]{0,x,x+y,t};(_|[(1|3),(1|h),s,s]) num_heads=h (|scale=0.4)",
        "s:1..4 x:0..s t:x+s h:1..3 d:1..4 [t,h,3,d];_;_;(_|[3*h*d]);i32[2,s]{tokens:s:x:s};i32[3]{0,x,t} num_heads=h",
    ]),
    ("QAttention", &[
        "b:1..3 s:1..4 h:1..3 d:1..4 n:h*d [b,s,i];[i,3*n];[3*n];[]{0.01..0.05};([]{0.02..0.1}|[3*n]{0.02..0.1});(_|i32[b]{0..s}|i32[b,s]{0..1}|i32[b,s,s]{0..1}|i32[2*b]{1..s#b,0..s-1});(_|[]{0..5});(_|[]{0..5}|[3*n]{0..5}) num_heads=h unidirectional=(0|1) (|scale=0.5) mask_filter_value=(-10000|-3)",
        "b:1..3 s:1..4 p:1..4 h:1..3 d:1..4 n:h*d [b,s,i];[i,3*n];[3*n];[1]{0.01..0.05};[1]{0.02..0.1};(_|i32[b,p+s]{0..1});([1]{0..5}|_);([1]{0..5}|_);[2,b,h,p,d] num_heads=h unidirectional=(0|1) outs=2",
    ]),
    ("GatedRelativePositionBias", &[
        "b:1..3 s:1..5 h:1..3 d:(1|2|4) [b,s,h*d];[h*d];[1,h,s,s];[d,8];[8];[1,h,1,1] num_heads=h",
        "s:1..4 x:0..s h:1..3 d:1..4 [x+s,h*d];[h*d];[1,h,s,s];[d,8];[8];[1,h,1,1];i32[2,s]{tokens:s:x:s} num_heads=h",
    ]),
    ("RelativePositionBias", &[
        "n:2*(1|2|4|8) h:1..4 q:1..9 t:q+(0|0|3) [n,h];i64[(1|)]{(a:q|t)};i64[1]{t} max_distance=n*(1|2|4) is_bidirectional=(0|1)",
    ]),
    ("RotaryEmbedding", &[
        "b:1..3 s:1..4 h:1..3 d:2*(1|2|3|4) m:s+3 [b,s,h*d];(i64[b,s]{0..m-1}|i64[1]{0..3});[m,d/2];[m,d/2] num_heads=h (|interleaved=1)",
        "b:1..3 s:1..4 h:1..3 d:2*(1|2|3|4) m:s+3 [b,h,s,d];(i64[b,s]{0..m-1}|i64[1]{0..3});[m,d/2];[m,d/2] (|interleaved=1)",
        "b:1..3 s:1..4 h:1..3 d:8 r:(2|4) m:s+3 [b,s,h*d];i64[b,s]{0..m-1};[m,r/2];[m,r/2] num_heads=h rotary_embedding_dim=r (|interleaved=1)",
        "b:1..3 s:1..4 h:1..3 d:8 r:(2|4) m:s+3 [b,h,s,d];i64[b,s]{0..m-1};[m,r/2];[m,r/2] num_heads=h rotary_embedding_dim=r (|interleaved=1)",
    ]),
    ("MRotaryEmbedding", &[
        "b:1..3 s:1..4 h:1..3 x:0..2 y:0..2 z:1..2 d:2*x+2*y+2*z [b,s,h*d];i64[3,b,s]{0..4};[5,d/2];[5,d/2] num_heads=h mrope_section=[x,y,z] (|mrope_layout=1)",
        "b:1..3 s:1..4 h:1..3 x:1..2 y:1..2 z:1..2 d:2*x+2*y+2*z [b,h,s,d+(0|2)];i64[3,b,s]{0..4};[5,d/2];[5,d/2] num_heads=h rotary_embedding_dim=d mrope_section=[x,y,z] (|interleaved=1)",
    ]),
    // States
    ("LinearAttention", &[
        "b:1..2 s:1..4 k:1..2 h:k*(1|2) d:1..4 e:1..4 [b,s,h*d];[b,s,k*d];[b,s,k*e];(_|[b,k,d,e]);[b,s,k];[b,s,(1|k)] q_num_heads=h kv_num_heads=k update_rule=gated_delta (|scale=0.5)",
        "b:1..2 s:1..4 k:1..2 h:k*(1|2) d:1..4 e:1..4 [b,s,h*d];[b,s,k*d];[b,s,k*e];(_|[b,k,d,e]);[b,s,(k|k*d)] q_num_heads=h kv_num_heads=k update_rule=gated",
        "b:1..2 s:1..4 k:1..2 h:k*(1|2) d:1..4 e:1..4 [b,s,h*d];[b,s,k*d];[b,s,k*e];(_|[b,k,d,e]);_;[b,s,k] q_num_heads=h kv_num_heads=k update_rule=delta",
        "b:1..2 s:1..4 k:1..2 h:k*(1|2) d:1..4 e:1..4 [b,s,h*d];[b,s,k*d];[b,s,k*e];(_|[b,k,d,e]) q_num_heads=h kv_num_heads=k update_rule=linear",
    ]),
    ("CausalConvWithState", &[
        "b:1..3 c:1..4 l:1..6 k:1..4 [b,c,l];[c,1,k];(_|[c]);(_|[b,c,k-1]) activation=(none|silu|swish)",
        "b:1..3 c:1..4 l:1..6 k:2..4 n:2 [b,c,l];[c,1,k];(_|[c]);(_|[b,c,k*n-n]) dilation=n",
        "b:1..3 c:1..4 l:1..6 k:2..4 [b,l,c];[c,1,k];(_|[c]);(_|[b,k-1,c]) channels_last=1 activation=(none|silu)",
    ]),
    ("LinearAttentionGate", &["[b,s,h];[h];[h];(_|[b,s,h] outs=2|[b,s,h])"]),
    ("GatedRMSNorm", &["n:1..4 w:1..4 [b,s,n*w];[(n*w|w)];[b,s,n*w] activation=(silu|sigmoid|swish) epsilon=(0.01|0.001)", "[t,w];[w];[t,w]"]),
    // Normalization
    ("SkipLayerNormalization", &[
        "b:1..3 s:1..4 n:2..9 [b,s,n];([b,s,n]|[1,s,n]|[s,n]);[n];(_|[n]);(_|[n]) epsilon=(0.001|0.1) outs=(1|4)",
        "[t,n];[t,n];[n];([n]|_) epsilon=0.01",
    ]),
    ("SkipSimplifiedLayerNormalization", &["b:1..3 s:1..4 n:2..9 [b,s,n];([b,s,n]|[1,s,n]|[s,n]);[n];(_|[n]) epsilon=(0.001|0.1) outs=(1|4)"]),
    ("EmbedLayerNormalization", &[
        "b:1..3 s:1..4 n:2..8 v:1..6 p:s..6 g:1..3 i32[b,s]{0..v-1};(g:_|i32[b,s]{0..g-1});[v,n];[p,n];(g:_|[g,n]);[n];[n];(m:_|i32[b,s]{0..1}|_);(_|i32[(1|b),s]{0..p-1}) epsilon=(0.001|0.1) (m:|outs=2|outs=3) (|mask_index_type=1)",
    ]),
    ("QEmbedLayerNormalization", &[
        "b:1..3 s:1..4 n:2..8 v:1..6 p:s..6 g:1..3 [b,s]{0..v-1};(g:_|[b,s]{0..g-1});[v,n];[p,n];(g:_|[g,n]);[n];[n];(_|[b,s]{0..1});[]{0.05..0.3};[]{0.05..0.3};(g:_|[]{0.05..0.3});[]{0.05..0.3};[]{0.05..0.3};[]{0..9};[]{0..9};(g:_|[]{0..9});[]{0..9};[]{0..9} outs=2",
    ]),
    ("GroupNorm", &["g:1..3 c:g*(1|2) [n,h,w,c];[c];[c] groups=g activation=(0|1) epsilon=(0.01|0.1)", "g:1..3 c:g*(1|2) [n,c,h,w];[c];[c] groups=g activation=(0|1) channels_last=0"]),
    ("SkipGroupNorm", &["g:1..3 c:g*(1|2) [n,h,w,c];[c];[c];([n,h,w,c]|[n,1,1,c]|[n,c]);(_|[c]) groups=g activation=(0|1) outs=(1|2)"]),
    ("BiasSoftmax", &[
        "[a,b,c,d];(p:[a,1,1,d]|[1,1,c,d]|[c,d]|[a,1,c,d]) axis=(p:3|3|2|2) is_inner_broadcast=(p:1|0|0|1)",
        "k:1..3 [k*a,b];[k,b] is_inner_broadcast=1 axis=1",
        "[a,b,c];[c] axis=-1 is_inner_broadcast=0",
    ]),
    // Products
    ("FusedMatMul", &[
        "b:1..3 (x:[b,m,k]|[b,k,m]|[m,b,k]|[k,b,m]);(y:[b,k,n]|[b,n,k]|[k,b,n]|[n,b,k]) transA=(x:0|1|0|1) transBatchA=(x:0|0|1|1) transB=(y:0|1|0|1) transBatchB=(y:0|0|1|1) (|alpha=(0.25|-2))",
        "(x:[b,c,m,k]|[b,c,k,m]);(y:[k,n]|[n,k]|[c,k,n]|[1,c,n,k]) transA=(x:0|1) transB=(y:0|1|0|1) alpha=0.5",
    ]),
    ("FusedMatMulActivation", &[
        "(x:[b,m,k]|[b,k,m]);(y:[b,k,n]|[n,k]|[k,n]) transA=(x:0|1) transB=(y:0|1|0) alpha=(1|0.5) activation=(Relu|Tanh|Sigmoid|LeakyRelu|Elu|HardSigmoid) (|activation_alpha=0.3) (|activation_beta=0.4)",
    ]),
    ("TransposeMatMul", &["(x:[b,m,k]|[b,k,m]);(y:[b,k,n]|[n,k]|[k,n]) transA=(x:0|1) transB=(y:0|1|0) alpha=(1|0.5)"]),
    ("FusedGemm", &[
        "(x:[m,k]|[k,m]);(y:[k,n]|[n,k]);(_|[n]|[m,1]|[1,n]|[m,n]|[]) transA=(x:0|1) transB=(y:0|1) alpha=(1|0.5) beta=(1|2) (|activation=(Relu|Tanh|Sigmoid|LeakyRelu|Elu|HardSigmoid|Softplus|Softsign|Selu)) (|activation_alpha=0.3) (|activation_beta=0.4)",
    ]),
    ("GemmFastGelu", &["[b,s,k];[k,n];(_|[n])", "[m,k];[k,n];(_|[n])"]),
    ("MatMulNBits", &[
        "u:(16|32) k:1..70 n:1..6 j:k^u [(m|b,m|),k];u8[n,j,u/2]{0..255};([n*j]{0.1..1.0}|[n,j]);(_|u8[n,j^2]{0..255}|u8[n*j^2]{0..255});_;(_|[n]) K=k N=n block_size=u bits=4 accuracy_level=(0|1|4)",
        "u:(16|32) k:1..70 n:1..6 j:k^u [(m|b,m),k];u8[n,j,u]{0..255};([n*j]{0.01..0.1}|[n,j]{0.01..0.1});(_|u8[n,j]{0..255});_;(_|[n]) K=k N=n block_size=u bits=8",
        "u:(16|32) k:1..70 n:1..6 j:k^u [m,k];u8[n,j,u/4]{0..255};[n,j]{0.1..1.0};(_|u8[n,j^4]{0..255});_;(_|[n]) K=k N=n block_size=u bits=2",
        "u:16 k:1..70 n:1..6 j:k^u [m,k];u8[n,j,u*(z:3|5|6|7)/8]{0..255};[n,j]{0.1..1.0};_ K=k N=n block_size=u bits=(z:3|5|6|7)",
        "u:16 k:1..50 n:1..6 j:k^u [m,k];u8[n,j,u/2]{0..255};[n*j];(_|u8[n,j^2]{0..255}|[n*j]{0.0..15.0});i32[k]{0..j-1} K=k N=n block_size=u bits=4",
    ]),
    ("MatMulBnb4", &[
        "u:16*(1|2) k:1..40 n:1..6 [(m|b,m),k];u8[n*k^2]{0..255};[n*k^u] K=k N=n block_size=u quant_type=(0|1)",
        "u:16 k:1..40 n:1..6 [m,n];u8[n*k^2]{0..255};[n*k^u] K=k N=n block_size=u quant_type=(0|1) transB=0 training_mode=1",
    ]),
    ("GatherBlockQuantized", &[
        "n:1..5 w:1..40 u:(16|32) j:w^u (t:u4|i4)[n,w]{(t:0..15|-8..7)};i64[(|2|2,2)]{-n..n-1};[n,j];(_|(t:u4|i4)[n,j]{(t:0..15|-8..7)}) block_size=u (|quantize_axis=-1)",
        "n:1..5 w:1..20 u:16 j:2*w^u u8[n,w]{0..255};i32[(|2|3,1)]{-n..n-1};[n,j];(_|u8[n,j^2]{0..255}) block_size=u",
        "n:1..5 w:1..20 u:16 j:w^u u8[n,w]{0..255};i64[3]{-n..n-1};[n,j];(_|u8[n,j]{0..255}) block_size=u bits=8",
        "n:1..20 w:1..4 u:16 j:n^u i4[n,w]{-8..7};i64[2]{-w..w-1};[j,w];(_|i4[j,w]{-8..7}) block_size=u gather_axis=1 quantize_axis=0",
    ]),
    ("MatMulIntegerToFloat", &[
        "[(m|b,m),k];[k,n];[]{0.05..0.5};([]{0.05..0.5}|[n]{0.05..0.5});(_|[]{0..9});(_|[]{0..9});(_|[n])",
        "[b,m,k];[b,k,n];[1]{0.05..0.5};[1]{0.05..0.5};([1]{0..9}|_);([1]{0..9}|_);(_|[n])",
        "[m,k];[k,n];[]{0.05..0.5};[n]{0.05..0.5};[]{0..9};[n]{0..9};(_|[n])",
    ]),
    ("DynamicQuantizeMatMul", &["[(m|b,m),k];[k,n];([]{0.05..0.5}|[n]{0.05..0.5});(_|[]{0..9});(_|[n])", "[m,k];[k,n];[n]{0.05..0.5};[n]{0..9};(_|[n])"]),
    ("QGemm", &[
        "(x:[m,k]|[k,m]);[]{0.05..0.5};[]{0..9};(y:[k,n]|[n,k]);([]{0.05..0.5};[]{0..9}|[n]{0.05..0.5};[n]{0..9});(_|[n]|[1,n]|[m,n]|[]);(q:_|[]{0.5..2.0};[]{0..9}) transA=(x:0|1) transB=(y:0|1) alpha=(1|0.5)",
    ]),
    // Quantized
    ("QLinearAdd", &["[(a|a,b|a,b,c)];[]{0.1..1.0};(_|[]{0..20});([(1|a)]|[]|[1,1,1]);[]{0.1..1.0};(_|[]{0..20});[]{0.1..1.0};(_|[]{0..20})", "[a,b,c];[1]{0.5};[1]{3};[(1|b),(1|c)];[1]{0.2};_;[1]{0.5};_"]),
    ("QLinearMul", &["[(a|a,b|a,b,c)];[]{0.1..1.0};(_|[]{0..20});([1]|[]|[1,1,1]);[]{0.1..1.0};(_|[]{0..20});[]{0.5..1.0};(_|[]{0..20})", "[a,b,c];[1]{0.5};[1]{3};[(1|b),(1|c)];[1]{0.2};_;[1]{0.5};_"]),
    ("QLinearSigmoid", &["[(a|a,b|a,b,c)];[]{0.02..0.5};(_|[]{0..20});[]{0.005..0.01};(_|[]{0..20})"]),
    ("QLinearLeakyRelu", &["[(a|a,b|a,b,c)];[]{0.1..1.0};(_|[]{0..20});[]{0.1..1.0};(_|[]{0..20}) alpha=(0.1|0.5|-1)"]),
    ("QLinearSoftmax", &["r:2..3 [(a,b|a,b,c)];[]{0.05..0.5};(_|[]{0..20});[]{0.004..0.01};[]{0..9} opset=13 axis=(-1|1|0)", "[a,b,c];[1]{0.25};_;[1]{0.005};[1]{7} opset=(11|12) axis=(1|2)"]),
    ("QLinearWhere", &["bool[(a|1)];[a];[]{0.1..1.0};[]{0..20};([a]|[]);[]{0.1..1.0};[]{0..20};[]{0.5};[]{0..9}", "bool[a,b];[(a|1),b];[]{0.1..1.0};[]{0..20};[b];[]{0.1..1.0};[]{0..20};[]{0.5};[]{0..9}"]),
    ("QLinearConcat", &["[]{0.2..1.0};(t:u8|i8)[]{0..9};(t:u8|i8)[a,b,c]{0..99};f32[]{0.1..1.0};(t:u8|i8)[]{0..9};(t:u8|i8)[a,d,c]{0..99};f32[]{0.1..1.0};(t:u8|i8)[]{0..9} axis=(1|-2)"]),
    ("QLinearAveragePool", &[
        "n:1..2 c:1..2 h:3..7 w:3..7 k:1..3 l:1..3 [n,c,h,w];[]{0.2..1.0};(_|[]{0..9});[]{0.2..1.0};(_|[]{0..9}) kernel_shape=[k,l] strides=[(1|2),(1|2)] ceil_mode=(0|1) count_include_pad=(0|1)",
        "n:1..2 c:1..2 h:3..7 w:3..7 [n,h,w,c];[]{0.2..1.0};[]{0..9};[]{0.2..1.0};[]{0..9} kernel_shape=[2,3] pads=[(0|1),(0|1),(0|1),(0|1)] channels_last=1 count_include_pad=(0|1)",
    ]),
    ("QLinearGlobalAveragePool", &["[n,(1|2|3),h,w];[]{0.2..1.0};[]{0..9};[]{0.2..1.0};[]{0..9}", "[n,h,w,c];[]{0.2..1.0};[]{0..9};[]{0.2..1.0};[]{0..9} channels_last=1"]),
    ("QuantizeLinear", &["[a,b];[]{0.1..1.0};(_|[]{0..5})", "[a,b,c];[b]{0.1..1.0};(_|[b]{0..5}) axis=(1|-2)"]),
    ("DequantizeLinear", &["[a,b];[]{0.1..1.0};(_|[]{0..5})", "[a,b,c];[b]{0.1..1.0};(_|[b]{0..5}) axis=(1|-2)"]),
    ("DynamicQuantizeLSTM", &[
        "s:1..4 b:1..3 h:1..4 e:(e:1|1|2) [s,b,i];[e,i,4*h];[e,h,4*h];(_|[e,8*h]);(_|i32[b]{0..s});(i:_;_|[e,b,h];[e,b,h]);(_|[e,3*h]);[e]{0.02..0.1};[e]{(0|0..5)};[e]{0.02..0.1};[e]{(0|0..5)} hidden_size=h direction=(e:forward|reverse|bidirectional) input_forget=0 outs=3",
        "s:1..4 b:1..3 h:1..4 [s,b,i];[1,i,4*h];[1,h,4*h];(_|[1,8*h]);_;_;_;_;[1,4*h]{0.02..0.1};[1,4*h]{(0|0..5)};[1]{0.02..0.1};[1]{(0|0..5)} hidden_size=h clip=(0.5|1.5) outs=3",
    ]),
    // Experts
    ("MoE", &[
        "t:1..5 n:2*(1|2|3) e:2..4 f:2*(1|2) [(t|1,t),n];[t,e];[e,f,n];(_|[e,f]);[e,n,f];(_|[e,n]) k=(1|2) activation_type=(relu|gelu|silu|identity) normalize_routing_weights=(0|1)",
        "t:1..5 n:2*(1|2|3) e:2..4 f:2*(1|2) [t,n];[t,e];[e,2*f,n];(_|[e,2*f]);[e,n,f];(_|[e,n]) k=(1|2) activation_type=swiglu swiglu_fusion=(1|2) swiglu_limit=(0.5|7) activation_alpha=1.5 activation_beta=(0|1) normalize_routing_weights=(0|1)",
        "t:1..5 n:2*(1|2|3) e:2..4 f:2*(1|2) [t,n];[t,e];[e,f,n];(_|[e,f]);[e,n,f];_;[e,f,n];(_|[e,f]) k=(1|2) activation_type=(silu|gelu)",
    ]),
    ("QMoE", &[
        "t:1..4 n:8*(1|2) e:2..3 f:8*(1|2) [t,n];[t,e];u8[e,f,n/2]{0..255};[e,f]{0.01..0.2};(_|[e,f]);u8[e,n,f/2]{0..255};[e,n]{0.01..0.2};(_|[e,n]) k=(1|2) activation_type=(relu|gelu|silu|identity) normalize_routing_weights=(0|1)",
        "t:1..4 n:16*(1|2) e:2..3 f:16*(1|2) [t,n];[t,e];u8[e,2*f,n]{0..255};[e,2*f]{0.001..0.02};_;u8[e,n,f]{0..255};[e,n]{0.001..0.02} k=(1|2) expert_weight_bits=8 activation_type=swiglu swiglu_fusion=1 swiglu_limit=7",
        "t:1..4 n:32 e:2..3 f:32 [t,n];[t,e];u8[e,f,n/2]{0..255};[e,f,n/(u:16|32)]{0.01..0.2};_;u8[e,n,f/2]{0..255};[e,n,f/(u:16|32)]{0.01..0.2};_;_;_;_;(_;_|u8[e,f,n/(u:16|32)^2]{0..255};u8[e,n,f/(u:16|32)^2]{0..255}) k=(1|2) block_size=(u:16|32) activation_type=(relu|silu)",
    ]),
    // Convolutions and windows
    ("FusedConv", &[
        "n:1..2 c:1..2 g:1..2 m:g*(1|2) h:4..7 w:4..7 k:1..3 l:1..3 [n,c*g,h,w];[m,c,k,l];(_|[m]) kernel_shape=[k,l] group=g strides=[(1|2),(1|2)] pads=[(0|1),(0|1),(0|1),(0|1)] activation=(Relu|Tanh|Sigmoid|LeakyRelu activation_params=[0.1]|HardSigmoid activation_params=[0.3,0.4]|Clip activation_params=[-1,0.5])",
        "n:1..2 c:1..2 m:1..3 h:4..7 k:1..3 [n,c,h];[m,c,k];(_|[m]);(_|[n,m,h-k+1]) kernel_shape=[k] activation=Relu",
    ]),
    ("NhwcConv", &["n:1..2 c:1..2 g:1..2 m:g*(1|2) h:4..7 w:4..7 k:1..3 l:1..3 [n,h,w,c*g];[m,c,k,l];(_|[m]) kernel_shape=[k,l] group=g strides=[(1|2),(1|2)] pads=[(0|1),(0|1),(0|1),(0|1)]"]),
    ("NhwcFusedConv", &["n:1..2 c:1..2 g:1..2 m:g*(1|2) h:4..7 w:4..7 k:1..3 l:1..3 [n,h,w,c*g];[m,c,k,l];(_|[m]);(_|[n,h-k+1,w-l+1,m]) kernel_shape=[k,l] group=g activation=(Relu|Tanh|LeakyRelu activation_params=[0.1])"]),
    ("NhwcMaxPool", &["n:1..2 c:1..3 h:4..7 w:4..7 k:1..3 l:1..3 [n,h,w,c] kernel_shape=[k,l] strides=[(1|2),(1|2)] (|ceil_mode=1) (|dilations=[(1|2),1]) (|auto_pad=SAME_UPPER)"]),
    ("MaxpoolWithMask", &["n:1..2 c:1..2 h:4..6 w:4..6 k:1..3 l:1..3 [n,c,h,w];[(1|n),(1|c),h,w]{0..1,1,1,1,0..1,1,1} kernel_shape=[k,l] strides=[(1|2),(1|2)] (|auto_pad=SAME_UPPER)"]),
    ("ConvTransposeWithDynamicPads", &["n:1..2 c:1..2 m:1..3 k:1..3 [n,c,h,w];[c,m,k,k];i64[4]{0..k/2};(_|[m]) strides=[(1|2),(1|2)] (|kernel_shape=[k,k])"]),
    ("CropAndResize", &["n:1..2 h:2..5 w:2..5 r:1..3 [n,c,h,w];[r,4]{-0.25..1.25};i32[r]{0..n-1};i32[2]{1..4} mode=(bilinear|nearest) (|extrapolation_value=9)"]),
    ("GridSample", &["n:1..2 h:2..5 w:2..5 [n,c,h,w];[n,i,j,2]{-1.3..1.3} mode=(bilinear|nearest|bicubic) padding_mode=(zeros|border|reflection) align_corners=(0|1)"]),
    // Words, places
    ("NGramRepeatBlock", &["v:2..5 i64[b,(0|1|5|8)]{0..v-1};[b,v] ngram_size=1..4"]),
    ("WordConvEmbedding", &["l:1..4 w:3..7 k:1..3 e:1..4 f:1..3 v:2..6 i32[(l|2,l),w]{1#w,0..v-1};[f,1,k,e];[f];[v,e] (|embedding_size=f conv_window_size=k char_embedding_size=e)"]),
    ("RemovePadding", &["b:1..4 s:1..5 [b,s,h];i32[b]{0..s}"]),
    ("RestorePadding", &["s:1..5 x:0..s y:0..s [x+y+s,h];i32[3,s]{tokens:s:x:y:s}"]),
    ("Range", &["(t:i32|i64|i16)[]{-3..3};(t:i32|i64|i16)[]{4..9};(_|(t:i32|i64|i16)[]{1..4})", "(t:f32|f64)[]{-3.0..3.0};(t:f32|f64)[1]{4..9};(_|(t:f32|f64)[]{0.5..2.0})"]),
    ("Pad", &["[a,b];i64[4]{0..2};(_|[]{0..3}|[1]{0..3}) mode=constant", "a:2..4 b:2..4 [a,b];i64[4]{0..1} mode=(reflect|edge)"]),
    ("GatherND", &["a:1..4 b:1..3 [a,b,c];i64[(n|n,m),1]{-a..a-1}", "a:1..4 [a,a,c];i32[n,2]{-a..a-1}"]),
    ("ExpandDims", &["[(a|a,b|a,b,c)];i32[(|1)]{-2..1}"]),
    ("UnfoldTensor", &["a:1..5 b:1..7 k:1..b [(x:a,b|b,a|a,a,b)] dim=(x:1|0|-1) size=k step=1..3"]),
    ("Unique", &["n:1..9 [n]{0..4}", "[7]{0..1}", "[5]"]),
    ("CDist", &["[m,k];[n,k] metric=(sqeuclidean|euclidean)"]),
    ("Inverse", &["n:1..4 [(|b,|b,c,)n,n]"]),
    ("ComplexMul", &["[a,b,2];([a,b,2]|[b,2]|[1,2])"]),
    ("ComplexMulConj", &["[a,b,2];([a,b,2]|[b,2]|[1,2])"]),
    ("BiasAdd", &["[b,s,n];[n];[b,s,n]"]),
    ("BiasGelu", &["[(b,s,n|s,n)];[n]"]),
    ("FastGelu", &["[(b,s,n|s,n)];(_|[n])"]),
    ("BiasSplitGelu", &["[b,s,2*n];[2*n]"]),
    ("GatedAdd", &["[b,s,n];[b,s,n];[b,s,1]"]),
];

#[cfg(test)]
mod tests {
    use super::super::{Draft, pick, template};
    use super::TABLE;
    use crate::Registry;
    use crate::cases::{Random, parse};

    #[test]
    fn each_template_gives_nodes() {
        let registry = Registry::builtin();
        let mut random = Random::new(7);
        let mut bad = vec![];
        for &(name, templates) in TABLE {
            let row = registry.newest("com.microsoft", name);
            let def = &registry[row];
            let (dtypes, counted) = (pick::dtypes(def), def.dtypes.first().map_or("", |d| d.0));
            for &text in templates {
                let (mut tried, mut refused) = (0, vec![]);
                for n in 0..40 {
                    let Some(case) = template::fill(def, text, &mut random) else { continue };
                    let parsed = parse(def, &case).unwrap_or_else(|e| panic!("{name} {case}: {e}"));
                    // A case may say the element type that the row counts under.
                    let own = parsed.operands.iter().enumerate().find_map(|(i, o)| {
                        let param = def.inputs.get(i).or(def.inputs.last())?;
                        o.as_ref()?.dtype.filter(|_| param.ty == counted)
                    });
                    let dtype = own.unwrap_or(dtypes[n % dtypes.len()]);
                    tried += 1;
                    if !Draft::new(&registry, 17, false, None).add_parsed((row, dtype), &parsed, &mut random) {
                        refused.push(case);
                    }
                }
                // What the model must know, as the axis of an ExpandDims, may be an input.
                if tried < 12 || refused.len() * 3 > tried * 2 {
                    let some = refused[..refused.len().min(3)].join("\n    ");
                    bad.push(format!("{} of {tried} are refused: {name} {text}\n    {some}", refused.len()));
                }
            }
        }
        assert!(bad.is_empty(), "{}", bad.join("\n"));
    }
}
