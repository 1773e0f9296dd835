//! Lists of WEUs by number, linked through one array.

/// No WEU, in links.
const NONE: u32 = u32::MAX;

/// A WEU's place in a list.
#[derive(Clone, Copy, Debug)]
struct Node {
    newer: u32,
    older: u32,
}

/// The nodes of all WEUs.
pub(super) struct Nodes(Vec<Node>);

impl Nodes {
    /// Nodes of `weus` WEUs, none of which is in a list.
    pub(super) fn new(weus: u32) -> Nodes {
        Nodes(vec![Node { newer: NONE, older: NONE }; weus as usize])
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.0.capacity() * size_of::<Node>()) as u64
    }
}

fn some(weu: u32) -> Option<u32> {
    (weu != NONE).then_some(weu)
}

/// A list. A WEU is in one list at most.
#[derive(Clone, Debug)]
pub(super) struct List {
    newest: u32,
    oldest: u32,
    len: u32,
}

impl Default for List {
    fn default() -> List {
        List { newest: NONE, oldest: NONE, len: 0 }
    }
}

impl List {
    /// The newest.
    pub(super) fn newest(&self) -> Option<u32> {
        some(self.newest)
    }

    /// The oldest.
    pub(super) fn oldest(&self) -> Option<u32> {
        some(self.oldest)
    }

    /// The one after a member, towards the newest.
    pub(super) fn newer(nodes: &Nodes, weu: u32) -> Option<u32> {
        some(nodes.0[weu as usize].newer)
    }

    /// Members.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Adds a WEU as the newest.
    pub(super) fn push(&mut self, nodes: &mut Nodes, weu: u32) {
        let older = std::mem::replace(&mut self.newest, weu);
        match older {
            NONE => self.oldest = weu,
            _ => nodes.0[older as usize].newer = weu,
        }
        nodes.0[weu as usize] = Node { newer: NONE, older };
        self.len += 1;
    }

    /// Removes a WEU.
    pub(super) fn remove(&mut self, nodes: &mut Nodes, weu: u32) {
        let Node { newer, older } = nodes.0[weu as usize];
        match newer {
            NONE => self.newest = older,
            _ => nodes.0[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => nodes.0[older as usize].newer = newer,
        }
        self.len -= 1;
    }

    /// All, newest first.
    ///
    /// # Errors
    /// A link that is wrong.
    pub(super) fn members(&self, nodes: &Nodes) -> Result<Vec<u32>, String> {
        let (mut all, mut at, mut newer) = (Vec::new(), self.newest, NONE);
        while at != NONE {
            if nodes.0[at as usize].newer != newer || all.len() as u32 >= self.len {
                return Err(format!("WEU {at} follows {newer} in a list of {}", self.len));
            }
            all.push(at);
            (newer, at) = (at, nodes.0[at as usize].older);
        }
        match (self.oldest, self.len) == (newer, all.len() as u32) {
            true => Ok(all),
            false => Err(format!("a list of {} ends at {newer}: {self:?}", all.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;
    use std::collections::VecDeque;

    #[test]
    fn a_list_is_as_a_queue_from_which_anything_may_be_taken() {
        let (mut rng, mut nodes, mut list, mut model) =
            (Rng::new(1, "list"), Nodes::new(20), List::default(), VecDeque::new());
        for _ in 0..2000 {
            let weu = rng.below(20) as u32;
            match model.iter().position(|w| *w == weu) {
                Some(at) => {
                    list.remove(&mut nodes, weu);
                    model.remove(at);
                }
                None => {
                    list.push(&mut nodes, weu);
                    model.push_front(weu);
                }
            }
            assert_eq!(list.members(&nodes), Ok(model.iter().copied().collect()));
            assert_eq!((list.newest(), list.oldest()), (model.front().copied(), model.back().copied()));
            let newer = |at: usize| at.checked_sub(1).map(|at| model[at]);
            assert!((0..model.len()).all(|at| List::newer(&nodes, model[at]) == newer(at)));
            assert_eq!(list.len() as usize, model.len());
        }
    }

    #[test]
    fn a_wrong_link_is_found() {
        let (mut nodes, mut list) = (Nodes::new(3), List::default());
        (0..3).for_each(|w| list.push(&mut nodes, w));
        nodes.0[1].newer = 0;
        assert!(list.members(&nodes).is_err());
    }
}
