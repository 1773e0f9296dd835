#![no_main]
use libfuzzer_sys::{fuzz_target, Corpus};
use std::sync::Once;

static HOOK: Once = Once::new();

/// The Parquet decoder panics at some damaged files, and our reader catches that: libFuzzer's hook, which ends the process
/// at every panic, gives way to one that ends it only for panics that our own checks raise.
fn hook() {
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let ours = info.location().is_none_or(|l| l.file().contains("crates/lab"));
            if ours {
                eprintln!("{info}");
                std::process::abort();
            }
        }));
    });
}

fuzz_target!(|data: &[u8]| -> Corpus {
    hook();
    plimsoll_lab::fuzzing::detected(data);
    Corpus::Keep
});
