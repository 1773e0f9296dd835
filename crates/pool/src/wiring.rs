//! Layers and the ports between them, by name.

use plimsoll_stack::{Layer, Offer, Stack, StackConfig, Target};

/// Destination of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum To {
    /// A layer's first face.
    Layer(&'static str),
    /// Another of its faces.
    Face(&'static str, u8),
    /// A device.
    Device(usize),
}

struct Placed {
    name: &'static str,
    layer: Box<dyn Layer>,
    ports: Vec<To>,
}

/// A stack before its ports are resolved. Layers are placed from the top down; a port may name a layer that is placed later.
#[derive(Default)]
pub(crate) struct Wiring {
    placed: Vec<Placed>,
    /// The layer of the chain that was placed last: it leads to the next one.
    open: Option<usize>,
}

impl Wiring {
    /// Places a layer below the one of the chain that was placed last.
    pub fn chain(&mut self, name: &'static str, layer: Box<dyn Layer>) {
        self.end_chain(To::Layer(name));
        self.open = Some(self.placed.len());
        self.placed.push(Placed { name, layer, ports: Vec::new() });
    }

    /// Leads the chain's last layer to `to`.
    pub fn end_chain(&mut self, to: To) {
        if let Some(last) = self.open.take() {
            self.placed[last].ports.insert(0, to);
        }
    }

    /// Places a layer beside the chain.
    pub fn beside(&mut self, name: &'static str, layer: Box<dyn Layer>, ports: Vec<To>) {
        self.placed.push(Placed { name, layer, ports });
    }

    /// Gives a layer a further port.
    ///
    /// # Panics
    /// If there is no such layer: a mistake of `build`.
    pub fn port(&mut self, of: &'static str, to: To) {
        let number = self.number(of);
        self.placed[number].ports.push(to);
    }

    fn number(&self, name: &str) -> usize {
        let number = self.placed.iter().position(|p| p.name == name);
        number.unwrap_or_else(|| panic!("there is no layer `{name}` to lead to"))
    }

    /// The stack, over devices that offer `offers`.
    pub fn stack(self, config: StackConfig, offers: Vec<Offer>) -> Stack {
        let target = |to: &To| match *to {
            To::Layer(name) => Target::Node(self.number(name)),
            To::Face(name, face) => Target::Face(self.number(name), face),
            To::Device(d) => Target::Device(d),
        };
        let ports: Vec<Vec<Target>> = self.placed.iter().map(|p| p.ports.iter().map(target).collect()).collect();
        let mut stack = Stack::new(config, offers);
        for (placed, ports) in self.placed.into_iter().zip(ports) {
            stack.push(placed.layer, ports);
        }
        stack
    }
}
