//! The event queue: earliest first, and among equals in the order they were added.

use plimsoll_base::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events of type `E` by time. Two events of one instant come out in the order they went in, so a run never depends on
/// the heap's inner order.
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

struct Entry<E> {
    at: Time,
    order: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<E> EventQueue<E> {
    /// An empty queue.
    pub fn new() -> EventQueue<E> {
        EventQueue::default()
    }
    /// Adds an event.
    pub fn add(&mut self, at: Time, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Entry { at, order: self.added, event }));
    }
    /// Returns the time of the next event; [`Time::NEVER`] if there is none.
    pub fn next_at(&self) -> Time {
        self.heap.peek().map_or(Time::NEVER, |Reverse(e)| e.at)
    }
    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|Reverse(e)| (e.at, e.event))
    }
    /// Returns the number of waiting events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }
    /// True if there is no event.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}
