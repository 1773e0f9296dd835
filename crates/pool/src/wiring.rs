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

/// A stack before its ports are resolved: layers by their part in the pool, from the top down.
///
/// A simulation that needs another stack than the product's names each difference here: a layer left out, put in between, or put in
/// another's place.
pub struct Wiring {
    placed: Vec<Placed>,
    /// The layer of the chain that was placed last: it leads to the next one.
    open: Option<usize>,
    config: StackConfig,
    offers: Vec<Offer>,
}

impl Wiring {
    /// No layer yet, over devices that offer `offers`.
    pub(crate) fn new(config: StackConfig, offers: Vec<Offer>) -> Wiring {
        Wiring { placed: Vec::new(), open: None, config, offers }
    }

    /// Places a layer below the one of the chain that was placed last.
    pub(crate) fn chain(&mut self, name: &'static str, layer: Box<dyn Layer>) {
        self.end_chain(To::Layer(name));
        self.open = Some(self.placed.len());
        self.placed.push(Placed { name, layer, ports: Vec::new() });
    }

    /// Leads the chain's last layer to `to`.
    pub(crate) fn end_chain(&mut self, to: To) {
        if let Some(last) = self.open.take() {
            self.placed[last].ports.insert(0, to);
        }
    }

    /// Places a layer beside the chain. A port may lead to a layer that is placed later.
    pub(crate) fn beside(&mut self, name: &'static str, layer: Box<dyn Layer>, ports: Vec<To>) {
        self.placed.push(Placed { name, layer, ports });
    }

    /// Gives a layer a further port.
    pub(crate) fn port(&mut self, of: &'static str, to: To) {
        let number = self.number(of);
        self.placed[number].ports.push(to);
    }

    fn number(&self, name: &str) -> usize {
        let number = self.placed.iter().position(|p| p.name == name);
        number.unwrap_or_else(|| panic!("there is no layer `{name}`"))
    }

    /// Ports that lead to `from` lead to `to`.
    fn lead(&mut self, from: To, to: To) {
        self.placed.iter_mut().flat_map(|p| &mut p.ports).filter(|port| **port == from).for_each(|port| *port = to);
    }

    /// Leaves a layer out: whatever led to it leads to where its first port led.
    ///
    /// # Panics
    /// If there is no such layer, or nothing below it.
    #[must_use]
    pub fn without(mut self, name: &'static str) -> Wiring {
        let out = self.placed.remove(self.number(name));
        let below = *out.ports.first().unwrap_or_else(|| panic!("nothing is below `{name}`"));
        self.lead(To::Layer(name), below);
        self
    }

    /// Puts a layer between `below` and whatever led to it.
    ///
    /// # Panics
    /// If there is no layer `below`.
    #[must_use]
    pub fn above(mut self, below: &'static str, name: &'static str, layer: Box<dyn Layer>) -> Wiring {
        let number = self.number(below);
        self.lead(To::Layer(below), To::Layer(name));
        self.placed.insert(number, Placed { name, layer, ports: vec![To::Layer(below)] });
        self
    }

    /// Puts another layer in the place of one.
    ///
    /// # Panics
    /// If there is no such layer.
    #[must_use]
    pub fn instead(mut self, name: &'static str, layer: Box<dyn Layer>) -> Wiring {
        let number = self.number(name);
        self.placed[number].layer = layer;
        self
    }

    /// Puts a layer in the place of a device.
    #[must_use]
    pub fn ending(mut self, device: usize, name: &'static str, layer: Box<dyn Layer>) -> Wiring {
        self.lead(To::Device(device), To::Layer(name));
        self.beside(name, layer, Vec::new());
        self
    }

    /// Takes a device away: the model before it has no bytes behind it.
    #[must_use]
    pub fn bare(mut self, device: usize) -> Wiring {
        self.placed.iter_mut().for_each(|p| p.ports.retain(|port| *port != To::Device(device)));
        self
    }

    /// The stack. Devices that no port leads to are not among its devices; the others keep their order.
    pub fn stack(self) -> Stack {
        let used = |d: &usize| self.placed.iter().any(|p| p.ports.contains(&To::Device(*d)));
        let devices: Vec<usize> = (0..self.offers.len()).filter(used).collect();
        let target = |to: &To| match *to {
            To::Layer(name) => Target::Node(self.number(name)),
            To::Face(name, face) => Target::Face(self.number(name), face),
            To::Device(d) => Target::Device(devices.partition_point(|used| *used < d)),
        };
        let ports: Vec<Vec<Target>> = self.placed.iter().map(|p| p.ports.iter().map(target).collect()).collect();
        let mut stack = Stack::new(self.config, devices.iter().map(|d| self.offers[*d]).collect());
        for (placed, ports) in self.placed.into_iter().zip(ports) {
            stack.push(placed.layer, ports);
        }
        stack
    }
}
