//! A static partition (Fig 1c): each latency-critical queue has a fixed number of cores, best effort the rest.

use crate::policy::Policy;
use crate::policy::partition::{self, Partition};
use crate::queue::Queues;
use plimsoll_base::{Span, Time};

/// See the module's documentation.
#[derive(Default)]
pub struct Fixed {
    partition: Partition,
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "static"
    }

    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        let (unused, used): (Vec<usize>, Vec<usize>) = queues.critical().partition(|&at| queues.get(at).is_unused());
        for at in unused {
            queues.set_cores(now, at, 0);
        }
        for at in used {
            let (wanted, have) = (queues.get(at).allotment().cores.max(1), queues.get(at).cores());
            queues.set_cores(now, at, wanted.min(have + queues.unowned()));
        }
    }

    fn ended(&mut self, now: Time, at: usize, _response: Span, queues: &mut Queues) {
        if queues.get(at).is_unused() {
            self.queues_changed(now, queues); // what its tenants left is done: its cores are others'
        }
    }

    fn next(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        self.partition.next(now, queues)
    }

    fn wait(&self, _now: Time, at: usize, queues: &Queues) -> Span {
        partition::wait(at, queues)
    }
}
