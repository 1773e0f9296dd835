//! The service graph: the components that a request runs through, their order, and their numbers of runs (OT-M1, OpTune §5.2.1).
//!
//! A graph is written as named nodes over components, each node one of OpTune's patterns (§5.2.2, Fig. 5.4): a sequence,
//! a condition, a parallel with a barrier, a loop. Nodes nest by name, so inner loops are composed before outer ones by
//! construction. A node that reaches itself again isn't a loop of known iterations and is refused.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// A node's index in [`ServiceGraph::nodes`].
pub type NodeId = usize;

/// Source of the numbers of a condition, loop or parallel.
#[derive(Clone, PartialEq, Debug)]
pub enum Weights {
    /// Given in the graph: a probability for each outcome.
    Given(Vec<f64>),
    /// Recorded in the profile, so that a parameter may move them.
    Measured,
}

/// Kind of a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// Code whose execution time is recorded.
    Component,
    /// One after the other.
    Sequence(Vec<NodeId>),
    /// One of them: outcome `i` is branch `i`.
    Condition(Vec<NodeId>, Weights),
    /// All of them at once, over when the last one is. Outcome `n` of the weights: that many copies of each.
    Parallel(Vec<NodeId>, Weights),
    /// One after the other of the same: outcome `n` is n iterations.
    Loop(NodeId, Weights),
}

/// One node.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Kind.
    pub kind: Kind,
}

/// A checked service graph.
#[derive(Clone, PartialEq, Debug)]
pub struct ServiceGraph {
    nodes: Vec<Node>,
    root: NodeId,
    correlated: Vec<Vec<NodeId>>,
    /// All nodes, parts before wholes.
    parts_first: Vec<NodeId>,
}

/// A graph as written.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct WrittenGraph {
    /// The node that is the whole request.
    pub root: toml::Spanned<String>,
    /// Nodes that are no pattern: their times are recorded.
    pub components: Vec<toml::Spanned<String>>,
    /// Groups of components whose times depend on each other within a request.
    #[serde(default)]
    pub correlated: Vec<Vec<toml::Spanned<String>>>,
    /// The patterns by name.
    #[serde(default)]
    pub node: BTreeMap<String, toml::Spanned<WrittenNode>>,
}

/// A pattern as written: exactly one of the first four.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct WrittenNode {
    sequence: Option<Vec<String>>,
    condition: Option<Vec<String>>,
    parallel: Option<Vec<String>>,
    #[serde(rename = "loop")]
    looped: Option<String>,
    /// Of a condition's branches; without: measured.
    probabilities: Option<Vec<f64>>,
    /// Of 0, 1, 2, … iterations or copies; without: measured for a loop, one copy for a parallel.
    counts: Option<Vec<f64>>,
    /// A parallel of this many copies.
    copies: Option<u16>,
    /// True: the copies are counted in the profile.
    #[serde(default)]
    measured: bool,
}

/// Problem of a graph, and its place in the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadGraph {
    /// Byte in the text.
    pub at: usize,
    /// Problem, and its remedy.
    pub what: String,
}

impl fmt::Display for BadGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
impl std::error::Error for BadGraph {}

/// Nodes a graph may have.
pub const NODES_MAX: usize = 4_096;
/// Iterations or copies a node may have.
pub const COUNT_MAX: usize = 4_096;
/// Probabilities sum to 1 up to this: they are written with few digits.
const SUM_TOLERANCE: f64 = 1e-6;

impl ServiceGraph {
    /// Checks a written graph.
    ///
    /// # Errors
    /// Unknown or repeated names, cycles, probabilities that don't sum to 1, empty patterns.
    pub fn new(written: &WrittenGraph) -> Result<ServiceGraph, BadGraph> {
        let mut names: BTreeMap<&str, (NodeId, usize)> = BTreeMap::new();
        let declared = written.components.iter().map(|c| (c.get_ref().as_str(), c.span().start));
        let patterns = written.node.iter().map(|(n, w)| (n.as_str(), w.span().start));
        for (id, (name, at)) in declared.chain(patterns).enumerate() {
            if id >= NODES_MAX {
                return Err(bad(at, format!("more than {NODES_MAX} nodes")));
            }
            if name == crate::adapter::SETTLING || name.is_empty() || !crate::space::is_cell(name) {
                return Err(bad(
                    at,
                    format!(
                        "`{name}` is no name: a profile has to hold it, so no commas, quotes, line ends or blanks around it, and not `{}`",
                        crate::adapter::SETTLING
                    ),
                ));
            }
            if names.insert(name, (id, at)).is_some() {
                return Err(bad(at, format!("`{name}` is there twice: give each node and component its own name")));
            }
        }
        let find = |name: &str, at: usize| {
            names.get(name).map(|n| n.0).ok_or_else(|| {
                bad(at, format!("`{name}` is neither a component nor a node: declare it, or correct the name"))
            })
        };
        let component = |c: &toml::Spanned<String>| Node { name: c.get_ref().clone(), kind: Kind::Component };
        let mut nodes: Vec<Node> = written.components.iter().map(component).collect();
        for (name, w) in &written.node {
            let kind = w.get_ref().kind(name, w.span().start, &find)?;
            nodes.push(Node { name: name.clone(), kind });
        }
        let root = find(written.root.get_ref(), written.root.span().start)?;
        let mut correlated = Vec::new();
        for group in &written.correlated {
            let id = |c: &toml::Spanned<String>| find(c.get_ref(), c.span().start);
            let ids: Vec<NodeId> = group.iter().map(id).collect::<Result<_, _>>()?;
            if let Some((c, _)) = group.iter().zip(&ids).find(|(_, id)| nodes[**id].kind != Kind::Component) {
                return Err(bad(c.span().start, format!("`{}` is no component: only times correlate", c.get_ref())));
            }
            let other: Vec<NodeId> = correlated.iter().flatten().copied().collect();
            let is_twice = |&(i, id): &(usize, &NodeId)| other.contains(id) || ids[..i].contains(id);
            if let Some((i, _)) = ids.iter().enumerate().find(is_twice) {
                let c = &group[i];
                return Err(bad(
                    c.span().start,
                    format!("`{}` is in `correlated` twice: join the groups", c.get_ref()),
                ));
            }
            correlated.push(ids);
        }
        let mut graph = ServiceGraph { nodes, root, correlated, parts_first: Vec::new() };
        graph.parts_first = graph.ordered(&|id| names[graph.nodes[id].name.as_str()].1)?;
        Ok(graph)
    }

    /// All nodes, components first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node that is the whole request.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// Groups of components that depend on each other within a request.
    pub fn correlated(&self) -> &[Vec<NodeId>] {
        &self.correlated
    }

    /// A node's parts.
    pub fn children(&self, id: NodeId) -> &[NodeId] {
        match &self.nodes[id].kind {
            Kind::Component => &[],
            Kind::Sequence(c) | Kind::Condition(c, _) | Kind::Parallel(c, _) => c,
            Kind::Loop(body, _) => std::slice::from_ref(body),
        }
    }

    /// All nodes, parts before wholes.
    pub fn parts_first(&self) -> &[NodeId] {
        &self.parts_first
    }

    /// Nodes whose numbers must be recorded: components, and patterns with measured weights; those that the root reaches.
    pub fn measured(&self) -> Vec<NodeId> {
        let mut reached = vec![false; self.nodes.len()];
        let mut todo = vec![self.root];
        while let Some(id) = todo.pop() {
            if !std::mem::replace(&mut reached[id], true) {
                todo.extend(self.children(id));
            }
        }
        let is_measured = |id: &NodeId| match &self.nodes[*id].kind {
            Kind::Component => true,
            Kind::Sequence(_) => false,
            Kind::Condition(_, w) | Kind::Parallel(_, w) | Kind::Loop(_, w) => *w == Weights::Measured,
        };
        (0..self.nodes.len()).filter(|&id| reached[id]).filter(is_measured).collect()
    }

    /// All nodes, parts before wholes; cycles are refused.
    fn ordered(&self, place: &dyn Fn(NodeId) -> usize) -> Result<Vec<NodeId>, BadGraph> {
        #[derive(Clone, Copy, PartialEq)]
        enum Seen {
            No,
            Open,
            Done,
        }
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut seen = vec![Seen::No; self.nodes.len()];
        for start in 0..self.nodes.len() {
            // The way from `start` to where we are, each with the next part to look at.
            let mut way: Vec<(NodeId, usize)> = Vec::new();
            if seen[start] == Seen::No {
                seen[start] = Seen::Open;
                way.push((start, 0));
            }
            while let Some((id, next)) = way.last_mut() {
                let (here, part) = (*id, *next);
                *next += 1;
                match self.children(here).get(part) {
                    None => {
                        seen[here] = Seen::Done;
                        order.push(here);
                        way.pop();
                    }
                    Some(&c) if seen[c] == Seen::No => {
                        seen[c] = Seen::Open;
                        way.push((c, 0));
                    }
                    Some(&c) if seen[c] == Seen::Open => {
                        let from = way.iter().position(|w| w.0 == c).expect("open nodes are on the way");
                        let mut names: Vec<&str> = way[from..].iter().map(|w| self.nodes[w.0].name.as_str()).collect();
                        names.push(&self.nodes[c].name);
                        return Err(bad(
                            place(here),
                            format!("the cycle {} is no loop: write it as a node with `loop`", names.join(" → ")),
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(order)
    }
}

impl WrittenNode {
    fn kind(
        &self,
        name: &str,
        at: usize,
        find: &dyn Fn(&str, usize) -> Result<NodeId, BadGraph>,
    ) -> Result<Kind, BadGraph> {
        let all = |parts: &[String]| -> Result<Vec<NodeId>, BadGraph> {
            if parts.is_empty() {
                return Err(bad(at, format!("`{name}` has no parts")));
            }
            parts.iter().map(|p| find(p, at)).collect()
        };
        let patterns = usize::from(self.sequence.is_some())
            + usize::from(self.condition.is_some())
            + usize::from(self.parallel.is_some())
            + usize::from(self.looped.is_some());
        if patterns != 1 {
            return Err(bad(at, format!("`{name}` must be exactly one of sequence, condition, parallel and loop")));
        }
        let misplaced = |key: &str, there: bool| match there {
            true => Err(bad(at, format!("`{name}`: `{key}` doesn't belong to this pattern"))),
            false => Ok(()),
        };
        misplaced("probabilities", self.probabilities.is_some() && self.condition.is_none())?;
        misplaced("counts", self.counts.is_some() && (self.sequence.is_some() || self.condition.is_some()))?;
        misplaced("copies", self.copies.is_some() && self.parallel.is_none())?;
        misplaced("measured", self.measured && self.parallel.is_none())?;
        if let Some(parts) = &self.sequence {
            return Ok(Kind::Sequence(all(parts)?));
        }
        if let Some(parts) = &self.condition {
            let ids = all(parts)?;
            let Some(p) = &self.probabilities else { return Ok(Kind::Condition(ids, Weights::Measured)) };
            if p.len() != ids.len() {
                return Err(bad(at, format!("`{name}` has {} branches and {} probabilities", ids.len(), p.len())));
            }
            return Ok(Kind::Condition(ids, given(name, at, p)?));
        }
        if let Some(body) = &self.looped {
            let weights = match &self.counts {
                Some(c) => given(name, at, c)?,
                None => Weights::Measured,
            };
            return Ok(Kind::Loop(find(body, at)?, weights));
        }
        let ids = all(self.parallel.as_deref().unwrap_or_default())?;
        let weights = match (&self.counts, self.copies, self.measured) {
            (Some(c), None, false) => given(name, at, c)?,
            (None, None, true) => Weights::Measured,
            (None, Some(n), false) if n > 0 && usize::from(n) < COUNT_MAX => Weights::Given(exactly(usize::from(n))),
            (None, None, false) => Weights::Given(exactly(1)),
            _ => return Err(bad(at, format!("`{name}`: one of counts, copies (1 to {}) and measured", COUNT_MAX - 1))),
        };
        Ok(Kind::Parallel(ids, weights))
    }
}

fn exactly(n: usize) -> Vec<f64> {
    let mut weights = vec![0.0; n + 1];
    weights[n] = 1.0;
    weights
}

fn bad(at: usize, what: String) -> BadGraph {
    BadGraph { at, what }
}

fn given(name: &str, at: usize, p: &[f64]) -> Result<Weights, BadGraph> {
    if let Some(x) = p.iter().find(|x| !(0.0..=1.0).contains(*x)) {
        return Err(bad(at, format!("`{name}`: {x} is no probability (0 to 1)")));
    }
    if p.len() > COUNT_MAX {
        return Err(bad(at, format!("`{name}`: more than {COUNT_MAX} outcomes")));
    }
    let sum: f64 = p.iter().sum();
    if (sum - 1.0).abs() > SUM_TOLERANCE {
        return Err(bad(at, format!("`{name}`: its probabilities sum to {sum}, not 1")));
    }
    Ok(Weights::Given(p.iter().map(|x| x / sum).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServiceGraph, String> {
        let w: WrittenGraph = toml::from_str(text).map_err(|e| e.to_string())?;
        ServiceGraph::new(&w).map_err(|e| e.to_string())
    }

    /// The web server of OpTune's Fig. 5.2.
    const WEB: &str = "root = 'request'\ncomponents = ['parse', 'cache', 'disk', 'reply']\n[node]\n\
        request = { sequence = ['parse', 'get', 'reply'] }\nget = { condition = ['cache', 'disk'] }\n";

    #[test]
    fn the_web_server_reads() {
        let g = parse(WEB).unwrap();
        let names = |ids: &[NodeId]| ids.iter().map(|&i| g.nodes()[i].name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(g.children(g.root())), ["parse", "get", "reply"]);
        assert_eq!(names(&g.measured()), ["parse", "cache", "disk", "reply", "get"]);
    }

    #[test]
    fn mistakes_are_told() {
        for (node, says) in [
            ("r = { sequence = ['a', 'x'] }", "`x` is neither"),
            (
                "r = { sequence = ['a', 's'] }\ns = { sequence = ['t'] }\nt = { loop = 'r' }",
                "the cycle r → s → t → r is no loop",
            ),
            ("r = { condition = ['a', 'b'], probabilities = [0.5, 0.6] }", "sum to 1.1, not 1"),
            ("r = { condition = ['a', 'b'], probabilities = [1.5, -0.5] }", "1.5 is no probability"),
            ("r = { condition = ['a', 'b'], probabilities = [1.0] }", "2 branches and 1 probabilities"),
            ("r = { sequence = [] }", "no parts"),
            ("r = { sequence = ['a'], loop = 'b' }", "exactly one of"),
            ("r = { sequence = ['a'], copies = 2 }", "`copies` doesn't belong"),
            ("r = { loop = 'a', counts = [0.5] }", "sum to 0.5"),
            ("a = { sequence = ['b'] }\nr = { sequence = ['a'] }", "`a` is there twice"),
            ("r = { sequnce = ['a'] }", "unknown field `sequnce`"),
            ("r = { parallel = ['a'], copies = 0 }", "copies (1 to 4095)"),
            ("r = { sequence = ['a'] }\n'(settling)' = { sequence = ['b'] }", "`(settling)` is no name"),
            ("r = { sequence = ['a'] }\n'x,y' = { sequence = ['b'] }", "`x,y` is no name"),
        ] {
            let e = parse(&format!("root = 'r'\ncomponents = ['a', 'b']\n[node]\n{node}\n")).expect_err(node);
            assert!(e.contains(says), "{node}: {e}");
        }
        for groups in ["[['a', 'a']]", "[['a', 'b'], ['b', 'a']]"] {
            let text = format!(
                "root = 'r'\ncomponents = ['a', 'b']\ncorrelated = {groups}\n[node]\nr = {{ sequence = ['a', 'b'] }}"
            );
            assert!(parse(&text).unwrap_err().contains("in `correlated` twice"), "{groups}");
        }
    }

    #[test]
    fn parts_come_before_wholes() {
        let g = parse(WEB).unwrap();
        let at = |id: NodeId| g.parts_first().iter().position(|&o| o == id).unwrap();
        assert_eq!(g.parts_first().len(), g.nodes().len());
        assert!((0..g.nodes().len()).all(|id| g.children(id).iter().all(|&c| at(c) < at(id))));
    }
}
