//! Settings of the allocator. The only `unsafe` of the crate beside the ring.

/// Sets glibc's allocator to give every allocation of at least 128 KiB a mapping of its own, as at the start of the process. By
/// default glibc raises that bound with each mapping that is freed, up to 32 MiB. Connections' buffers would then come from its
/// heap. There, one used buffer keeps all memory that was freed below it.
pub fn keep_large_allocations_apart() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `mallopt` takes two integers and changes a setting of glibc's allocator, under that one's own lock. Nothing
    // safe sets it: the environment variable is read before the process's first instruction of ours.
    let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) };
    #[cfg(target_env = "gnu")]
    if set == 0 {
        tracing::warn!("the allocator refused its setting: memory that was once used may stay resident");
    }
}
