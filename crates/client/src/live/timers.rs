//! The task that calls policies at the times that they asked for.
//!
//! Its clock is the runtime's, whose timers come up to a millisecond late and never early.

use super::driver::Driver;
use std::sync::{Arc, Mutex};

/// Runs until it's aborted.
pub async fn run(driver: Arc<Mutex<Driver>>) {
    let set = driver.lock().expect("no panic while held").timer_set.clone();
    loop {
        let due = driver.lock().expect("no panic while held").fire();
        match due {
            None => set.notified().await,
            Some(at) => tokio::select! {
                () = tokio::time::sleep_until(at.into()) => {}
                () = set.notified() => {}
            },
        }
    }
}
