//! Repeats one kind of decision, for instruction counts: `decision_cost KIND COUNT`. The difference between two counts
//! under `valgrind --tool=callgrind` is what the decisions cost without the setup.

use plimsoll_sched::{SchedulerKind, decision as setup};
use std::hint::black_box;

fn main() {
    let mut args = std::env::args().skip(1);
    let (kind, count) = (args.next().unwrap_or_default(), args.next().and_then(|n| n.parse().ok()).unwrap_or(0u64));
    let mut sum = 0u64;
    match kind.as_str() {
        "noop" | "cfq" => {
            let kind = if kind == "noop" { SchedulerKind::Noop } else { SchedulerKind::Cfq };
            let stack = setup::scheduler(kind, 128, 4);
            for i in 0..count {
                sum ^= stack.forecast(setup::NOW, black_box(&setup::read((64 << 30) + (i << 12), 64))).wait.as_nanos();
            }
        }
        "cfq-tenants" => {
            let stack = setup::tenants(128, 4);
            for i in 0..count {
                let head = black_box(setup::read_of(64, (64 << 30) + (i << 12)));
                sum ^= stack.forecast(setup::NOW, &head).wait.as_nanos();
            }
        }
        "ssd" => {
            let m = setup::ssd();
            (0..count).for_each(|i| sum ^= setup::ask_ssd(&m, black_box(i << 14)));
        }
        "auto" => {
            let p = setup::auto();
            (0..count).for_each(|i| sum ^= setup::ask_auto(&p, black_box(i << 14)));
        }
        "blackbox" => {
            let p = setup::black_box();
            (0..count).for_each(|i| sum ^= setup::ask_black_box(&p, black_box(i << 14)));
        }
        _ => {
            eprintln!("decision_cost noop|cfq|cfq-tenants|ssd|auto|blackbox COUNT");
            std::process::exit(2);
        }
    }
    println!("{sum}");
}
