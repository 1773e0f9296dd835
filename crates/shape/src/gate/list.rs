//! Doubly linked lists through array indices: they need no allocation and mean the same in every process that maps them.

use bytemuck::{Pod, Zeroable};

/// No element.
pub const NIL: u32 = u32::MAX;

/// An element's neighbours in one list.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    /// In no list.
    pub const NONE: Link = Link { prev: NIL, next: NIL };
}

/// First and last element of a list, oldest first.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct List {
    head: u32,
    tail: u32,
}

/// Entry that can be in the list numbered `K` of its kind.
pub trait Linked<const K: usize> {
    /// Its neighbours there.
    fn link(&mut self) -> &mut Link;
}

impl List {
    /// No elements.
    pub const EMPTY: List = List { head: NIL, tail: NIL };

    /// The oldest element.
    pub fn first(self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// The element after `i`.
    pub fn after<const K: usize, T: Linked<K>>(self, all: &mut [T], i: u32) -> Option<u32> {
        let next = all[i as usize].link().next;
        (next != NIL).then_some(next)
    }

    /// Adds `i`, which is in no list `K`, at the end.
    pub fn push<const K: usize, T: Linked<K>>(&mut self, all: &mut [T], i: u32) {
        *all[i as usize].link() = Link { prev: self.tail, next: NIL };
        match self.tail {
            NIL => self.head = i,
            tail => all[tail as usize].link().next = i,
        }
        self.tail = i;
    }

    /// Adds `i`, which is in no list `K`, before all others.
    pub fn push_front<const K: usize, T: Linked<K>>(&mut self, all: &mut [T], i: u32) {
        *all[i as usize].link() = Link { prev: NIL, next: self.head };
        match self.head {
            NIL => self.tail = i,
            head => all[head as usize].link().prev = i,
        }
        self.head = i;
    }

    /// Takes `i`, which is in this list, out.
    pub fn remove<const K: usize, T: Linked<K>>(&mut self, all: &mut [T], i: u32) {
        let Link { prev, next } = std::mem::replace(all[i as usize].link(), Link::NONE);
        match prev {
            NIL => self.head = next,
            p => all[p as usize].link().next = next,
        }
        match next {
            NIL => self.tail = prev,
            n => all[n as usize].link().prev = prev,
        }
    }

    /// Takes the oldest out.
    pub fn pop<const K: usize, T: Linked<K>>(&mut self, all: &mut [T]) -> Option<u32> {
        let first = self.first()?;
        self.remove(all, first);
        Some(first)
    }
}
