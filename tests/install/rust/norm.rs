// The installed library from Rust, with declarations written by hand: an RMS norm in place, and an error that
// names its field.
use std::ffi::{c_char, c_int, c_void, CStr};
use std::mem::{size_of, zeroed};
use std::ptr::{addr_of_mut, null_mut};

#[repr(C)]
struct ContextArgs {
    struct_size: u32,
    version: i32,
    engine: i32,
    isa: i32,
    threads: i32,
    batch_invariant: i32,
    kernel: *const c_char,
    allocator: [*const c_void; 3],
    parallel_for: *const c_void,
    parallel_for_pool: *mut c_void,
    check_indices: i32,
    device_index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    dtype: i32,
    device_type: i32,
    device_index: i32,
    ndim: i32,
    shape: [i64; 4],
    stride_elems: [i64; 4],
}

#[repr(C)]
struct NormArgs {
    struct_size: u32,
    kind: i32,
    eps: f64,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
}

#[repr(C)]
struct Workspace {
    data: *mut c_void,
    bytes: usize,
}

#[allow(non_camel_case_types)]
enum smla_context {}

extern "C" {
    fn smla_version() -> i32;
    fn smla_context_create(args: *const ContextArgs, out: *mut *mut smla_context) -> i32;
    fn smla_context_destroy(context: *mut smla_context);
    fn smla_norm(
        context: *mut smla_context,
        args: *const NormArgs,
        workspace: Workspace,
        stream: *mut c_void,
    ) -> i32;
    fn smla_last_error() -> *const c_char;
}

const F32: i32 = 2; // SMLA_F32
const INVALID_ARGUMENT: c_int = 1; // SMLA_INVALID_ARGUMENT

fn last_error() -> String {
    unsafe { CStr::from_ptr(smla_last_error()) }
        .to_string_lossy()
        .into_owned()
}

fn main() {
    let mut create: ContextArgs = unsafe { zeroed() };
    create.struct_size = size_of::<ContextArgs>() as u32;
    create.version = unsafe { smla_version() };
    let mut context = null_mut();
    let status = unsafe { smla_context_create(&create, &mut context) };
    assert_eq!(status, 0, "{}", last_error());

    let mut x = [3f32, -4., 0., 0.];
    let data = addr_of_mut!(x) as *mut c_void;
    let row = Tensor {
        data,
        dtype: F32,
        ndim: 3,
        shape: [1, 1, 4, 0],
        ..unsafe { zeroed() }
    };
    let none = Workspace {
        data: null_mut(),
        bytes: 0,
    };
    let mut args: NormArgs = unsafe { zeroed() };
    args.struct_size = size_of::<NormArgs>() as u32;
    args.kind = 0; // SMLA_NORM_RMS
    args.eps = 1e-12;
    (args.x, args.out) = (row, row);
    let status = unsafe { smla_norm(context, &args, none, null_mut()) };
    assert_eq!(status, 0, "{}", last_error());
    // mean(x^2) = 25/4, so out = x / 2.5, to a few f32 roundings
    assert!(
        (x[0] - 1.2).abs() < 1e-6 && (x[1] + 1.6).abs() < 1e-6,
        "wrong values: {:?}",
        x
    );

    args.eps = -1.;
    let none = Workspace {
        data: null_mut(),
        bytes: 0,
    };
    assert_eq!(
        unsafe { smla_norm(context, &args, none, null_mut()) },
        INVALID_ARGUMENT
    );
    assert!(
        last_error().contains("eps"),
        "the error does not name eps: {}",
        last_error()
    );
    println!("norm ok; error: {}", last_error());
    unsafe { smla_context_destroy(context) };
}
