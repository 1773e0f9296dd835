//! The task that calls policies at the times that they asked for.
//!
//! Its clock is the runtime's, whose timers come up to a millisecond late and never early.

use super::driver::Driver;
use super::home::Home;
use std::sync::{Arc, Mutex};

/// Ends a driver with its tasks: nobody would answer its reads.
struct Ends {
    home: Home,
    driver: Arc<Mutex<Driver>>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        // A child that was forked leaves its parent's reads alone. After a panic there is nothing left to tell.
        if !self.home.is_left()
            && let Ok(mut driver) = self.driver.lock()
        {
            driver.stop();
        }
    }
}

/// Runs until it's aborted, or its runtime ends.
pub async fn run(driver: Arc<Mutex<Driver>>) {
    let _ends = Ends { home: Home::here(), driver: driver.clone() };
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
