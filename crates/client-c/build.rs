//! The library's own name has the version of its interface, so that programs keep the one that they were linked with.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libplimsoll_client_c.so.0");
}
