//! The functions of librados and librbd, found at run time.

use crate::error::Error;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

/// A pointer of the libraries' own.
pub(crate) type Handle = *mut c_void;
/// Called by librbd when a completion is done; unused here: completions are announced at an event descriptor.
pub(crate) type Callback = Option<unsafe extern "C" fn(Handle, Handle)>;

const RADOS: &CStr = c"librados.so.2";
const RBD: &CStr = c"librbd.so.1";

/// `rbd_config_option_t`: a setting as it holds for an image.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub name: *mut c_char,
    pub value: *mut c_char,
    /// `rbd_config_source_t`: 0 the client's configuration, 1 the pool, 2 the image.
    pub source: c_int,
}

/// `rbd_image_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ImageInfo {
    pub size: u64,
    pub object_bytes: u64,
    pub objects: u64,
    pub order: c_int,
    pub prefix: [c_char; 24],
    pub parent_pool: i64,
    pub parent_name: [c_char; 96],
}

/// Declares the table of functions with their types as rados/librados.h and rbd/librbd.h have them.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The two libraries' functions.
        pub struct Libraries {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Libraries {
            /// Finds every function.
            fn find(rados: Handle, rbd: Handle) -> Result<Libraries, Error> {
                Ok(Libraries {
                    $($name: {
                        let found = symbol(rados, rbd, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the symbol is the library's function of this name, whose type is as written in the table: the
                        // libraries' interface is C and stable within their version numbers, which are part of their file names.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> $result>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    rados_create: fn(*mut Handle, *const c_char) -> c_int;
    rados_conf_read_file: fn(Handle, *const c_char) -> c_int;
    rados_conf_set: fn(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect: fn(Handle) -> c_int;
    rados_shutdown: fn(Handle) -> ();
    rados_mon_command: fn(Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
    rados_mgr_command: fn(Handle, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize) -> c_int;
    rados_buffer_free: fn(*mut c_char) -> ();
    rados_ioctx_create: fn(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_destroy: fn(Handle) -> ();
    rados_set_pool_full_try: fn(Handle) -> ();
    rbd_open: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only: fn(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close: fn(Handle) -> c_int;
    rbd_get_size: fn(Handle, *mut u64) -> c_int;
    rbd_get_features: fn(Handle, *mut u64) -> c_int;
    rbd_stat: fn(Handle, *mut ImageInfo, usize) -> c_int;
    rbd_get_overlap: fn(Handle, *mut u64) -> c_int;
    rbd_get_stripe_count: fn(Handle, *mut u64) -> c_int;
    rbd_get_block_name_prefix: fn(Handle, *mut c_char, usize) -> c_int;
    rbd_get_data_pool_id: fn(Handle) -> i64;
    rbd_config_image_list: fn(Handle, *mut ConfigOption, *mut c_int) -> c_int;
    rbd_config_image_list_cleanup: fn(*mut ConfigOption, c_int) -> ();
    rbd_lock_acquire: fn(Handle, c_int) -> c_int;
    rbd_lock_get_owners: fn(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, usize) -> ();
    rbd_lock_break: fn(Handle, c_int, *const c_char) -> c_int;
    rbd_is_exclusive_lock_owner: fn(Handle, *mut c_int) -> c_int;
    rbd_read: fn(Handle, u64, usize, *mut c_char) -> isize;
    rbd_write: fn(Handle, u64, usize, *const c_char) -> isize;
    rbd_flush: fn(Handle) -> c_int;
    rbd_write_zeroes: fn(Handle, u64, usize, c_int, c_int) -> isize;
    rbd_set_image_notification: fn(Handle, c_int, c_int) -> c_int;
    rbd_poll_io_events: fn(Handle, *mut Handle, c_int) -> c_int;
    rbd_aio_create_completion: fn(Handle, Callback, *mut Handle) -> c_int;
    rbd_aio_read: fn(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd_aio_write: fn(Handle, u64, usize, *const c_char, Handle) -> c_int;
    rbd_aio_write_zeroes: fn(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
    rbd_aio_flush: fn(Handle, Handle) -> c_int;
    rbd_aio_get_return_value: fn(Handle) -> isize;
    rbd_aio_get_arg: fn(Handle) -> Handle;
    rbd_aio_release: fn(Handle) -> ();
}

impl Libraries {
    /// Loads the libraries: from `folder` if there is one, else from where the system has them. They stay loaded.
    ///
    /// # Errors
    /// If one can't be loaded or is too old: which one, and the package that has it.
    pub fn load(folder: Option<&Path>) -> Result<Arc<Libraries>, Error> {
        let rados = open(folder, RADOS, libc::RTLD_GLOBAL, "librados2")?;
        let rbd = open(folder, RBD, 0, "librbd1")?;
        Libraries::find(rados, rbd).map(Arc::new)
    }
}

fn open(folder: Option<&Path>, name: &CStr, flags: c_int, package: &str) -> Result<Handle, Error> {
    let file = name.to_string_lossy();
    let path = folder.map_or(file.to_string(), |f| f.join(&*file).display().to_string());
    let c_path = CString::new(path.clone()).map_err(|_| Error::says(format!("{path:?}: a path with a zero byte")))?;
    // SAFETY: the path is a C string. Loading runs the library's own initialisers, as linking with it would.
    let library = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | flags) };
    if library.is_null() {
        let why = last_error();
        return Err(Error::says(format!(
            "Ceph's library {path} can't be loaded: install the package `{package}` (Debian, Ubuntu, Fedora), or name its folder with \
             `libraries` ({why})"
        )));
    }
    Ok(library)
}

fn symbol(rados: Handle, rbd: Handle, name: &str) -> Result<Handle, Error> {
    let c_name = CStr::from_bytes_with_nul(name.as_bytes()).expect("written with its zero");
    for library in [rbd, rados] {
        // SAFETY: the library is open and is never closed; the name is a C string.
        let found = unsafe { libc::dlsym(library, c_name.as_ptr()) };
        if !found.is_null() {
            return Ok(found);
        }
    }
    let name = name.trim_end_matches('\0');
    Err(Error::says(format!(
        "Ceph's libraries have no {name}: they are older than Ceph 16: upgrade librbd1 and librados2"
    )))
}

fn last_error() -> String {
    // SAFETY: dlerror returns a C string that is valid until this thread's next call of the loader, or null.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { "no reason given".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}
