//! A controller's answers on its admin queue, and Connects that are refused.

use plimsoll_nvme::command::Status;
use plimsoll_nvme::controller::{Controller, Role, Subsystem, Target};
use plimsoll_nvme::host::{Command, Ear, Heard, connect_data, parameters};
use plimsoll_nvme::opening::{Asked, Opening, Parameter};
use plimsoll_nvme::pdu::{Digests, Fault};
use plimsoll_nvme::queue::Namespace;
use plimsoll_nvme::wire::{AnaState, DISCOVERY_NQN};

const HOST: &str = "nqn.2026-11.test:host";
const NQN: &str = "nqn.2026-11.test:volume";

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}

/// A host and its controller, whose bytes go to and fro.
struct Scene {
    controller: Controller,
    ear: Ear,
    digests: Digests,
    now_ms: u64,
}

impl Scene {
    fn new(role: Role, digests: Digests, keep_alive_ms: u32) -> Scene {
        let mut bytes = parameters(digests).to_vec();
        let data = connect_data(0xffff, [9; 16], HOST, NQN);
        Command::connect(0, 0, 32, keep_alive_ms, true).send(&mut bytes, digests, &data);
        let mut opening = Opening::default();
        let Ok(Some(Asked::Connect(connect))) = opening.take(&mut &bytes[..]) else { panic!("no Connect") };
        assert_eq!(connect.keep_alive_ms, keep_alive_ms);
        let accepted = opening.accept(17);
        let mut ear = Ear::default();
        let mut input = &opening.output()[..];
        assert_eq!(ear.take(&mut input), Ok(Some(Heard::Parameters(digests, 1 << 20))));
        let done = Heard::Done { id: 0, status: Status::OK, value: 17, head: 1 };
        assert_eq!(ear.take(&mut input), Ok(Some(done)));
        let controller = Controller::new(role, 17, accepted, keep_alive_ms, 0, AnaState::Optimized);
        Scene { controller, ear, digests, now_ms: 0 }
    }

    fn io() -> Scene {
        let namespace = Namespace { blocks: 2048, read_only: true };
        let subsystem = Subsystem { nqn: NQN.into(), serial: "s1".into(), uuid: [7; 16], namespace, queues_max: 4 };
        let mut scene = Scene::new(Role::Io(subsystem), Digests { header: true, data: true }, 0);
        assert!(!scene.controller.is_ready());
        assert_eq!(scene.value(Command::property_set(1, 0x14, 0x46_0001)), Ok(0));
        assert!(scene.controller.is_ready());
        scene
    }

    fn send(&mut self, command: Command) -> Vec<Heard> {
        let mut bytes = Vec::new();
        command.send(&mut bytes, self.digests, &[]);
        let mut input = &bytes[..];
        self.controller.take(self.now_ms, &mut input).expect("no fault");
        assert!(input.is_empty());
        self.heard()
    }

    fn heard(&mut self) -> Vec<Heard> {
        let out = std::mem::take(self.controller.output());
        let mut input = &out[..];
        std::iter::from_fn(|| self.ear.take(&mut input).expect("a target's PDUs")).collect()
    }

    fn value(&mut self, command: Command) -> Result<u64, Status> {
        match self.send(command)[..] {
            [Heard::Done { status: Status::OK, value, .. }] => Ok(value),
            [Heard::Done { status, .. }] => Err(status),
            ref other => panic!("{other:?}"),
        }
    }

    fn data(&mut self, command: Command) -> Vec<u8> {
        match &self.send(command)[..] {
            [Heard::Data { data, offset: 0, .. }, Heard::Done { status: Status::OK, .. }] => data.clone(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_host_enables_and_shuts_down_a_controller() {
    let mut s = Scene::io();
    assert_eq!(s.value(Command::property_get(2, 0, true)), Ok(127 | 1 << 16 | 15 << 24 | 1 << 37));
    assert_eq!(s.value(Command::property_get(3, 8, false)), Ok(0x1_0400));
    assert_eq!(s.value(Command::property_get(4, 0x1c, false)), Ok(1));
    assert_eq!(s.value(Command::property_set(5, 0x14, 0x46_4001)), Ok(0));
    assert_eq!(s.value(Command::property_get(6, 0x1c, false)), Ok(9), "ready, and shut down");
    assert_eq!(s.value(Command::property_get(7, 0, false)), Err(Status::INVALID_FIELD), "of the wrong size");
    assert_eq!(s.value(Command::property_set(8, 0x1c, 1)), Err(Status::INVALID_FIELD));
    assert_eq!(s.value(Command::property_set(9, 0x14, 0)), Ok(0));
    assert_eq!(s.value(Command::identify(10, 1, 0)), Err(Status::SEQUENCE), "it is disabled");
}

#[test]
fn identify_tells_what_linux_asks_for() {
    let mut s = Scene::io();
    let c = s.data(Command::identify(1, 1, 0));
    assert_eq!(c.len(), 4096);
    assert_eq!((&c[4..24], c[76], c[77], c[111]), (&b"s1                  "[..], 0b1010, 8, 1));
    assert_eq!(u16::from_le_bytes([c[78], c[79]]), 17);
    assert_eq!(
        (c[343], u32_at(&c, 344), u32_at(&c, 348)),
        (0b100_0111, 1, 1),
        "optimized, non-optimized, inaccessible"
    );
    assert_eq!((u32_at(&c, 516), u32_at(&c, 1792)), (1, (64 + 32768) / 16));
    assert_eq!(&c[768..768 + NQN.len() + 1], format!("{NQN}\0").as_bytes());
    let n = s.data(Command::identify(2, 0, 1));
    assert_eq!((u32_at(&n, 0), u32_at(&n, 92), n[99], n[130]), (2048, 1, 1, 9));
    assert_eq!(n[104..120], [7; 16]);
    assert_eq!(u32_at(&s.data(Command::identify(3, 2, 0)), 0), 1);
    assert_eq!(u32_at(&s.data(Command::identify(4, 2, 1)), 0), 0, "none above 1");
    let d = s.data(Command::identify(5, 3, 1));
    assert_eq!((&d[..4], &d[20..24], &d[24..40], d[40]), (&[2, 16, 0, 0][..], &[3, 16, 0, 0][..], &[7; 16][..], 0));
    assert_eq!(s.data(Command::identify(6, 6, 0))[3], 1, "one range of a Dataset Management");
    assert_eq!(s.value(Command::identify(7, 0, 2)), Err(Status::INVALID_NAMESPACE));
    assert_eq!(s.value(Command::identify(8, 0x1c, 0)), Err(Status::INVALID_FIELD));
}

#[test]
fn features_are_granted_within_limits() {
    let mut s = Scene::io();
    assert_eq!(s.value(Command::set_feature(1, 7, 1 | 1 << 16)), Ok(1 | 1 << 16));
    assert_eq!(s.value(Command::set_feature(2, 7, 99 | 99 << 16)), Ok(3 | 3 << 16));
    assert_eq!(s.value(Command::set_feature(3, 7, 0xffff)), Err(Status::INVALID_FIELD));
    assert_eq!(s.value(Command::set_feature(4, 6, 0)), Err(Status::FIXED_FEATURE));
    assert_eq!(s.value(Command::admin(0xa, 5, 0).dword(10, 6)), Ok(1));
    assert_eq!(s.value(Command::set_feature(6, 0x7d, 0)), Err(Status::INVALID_FIELD));
    assert_eq!(s.value(Command::admin(8, 7, 0)), Ok(1), "not aborted");
    assert_eq!(s.value(Command::admin(0x81, 8, 0)), Err(Status::INVALID_OPCODE));
}

#[test]
fn log_pages_are_read_in_parts() {
    let mut s = Scene::io();
    let ana = s.data(Command::log_page(1, 0xc, 52));
    assert_eq!((ana[8], u32_at(&ana, 16), u32_at(&ana, 20), ana[32], u32_at(&ana, 48)), (1, 1, 1, 1, 1));
    let rest = s.data(Command::log_page(2, 0xc, 16).dword(12, 48));
    assert_eq!((rest.len(), u32_at(&rest, 0), u32_at(&rest, 4)), (16, 1, 0));
    for (log, bytes) in [(1, 64), (2, 512), (3, 512), (4, 4096), (5, 4096)] {
        assert_eq!(s.data(Command::log_page(3, log, bytes)).len(), bytes as usize);
    }
    assert_eq!(s.value(Command::log_page(4, 0x70, 1024)), Err(Status::INVALID_LOG));
    assert_eq!(s.value(Command::log_page(5, 0xc, 1 << 20)), Err(Status::INVALID_FIELD));
    assert_eq!(s.value(Command::log_page(6, 0xc, 16).dword(12, 56)), Err(Status::INVALID_FIELD));
}

#[test]
fn an_ana_change_is_told_once_until_the_log_page_is_read() {
    let mut s = Scene::io();
    for id in 20..24 {
        assert_eq!(s.send(Command::event_request(id)), []);
    }
    assert_eq!(s.value(Command::event_request(24)), Err(Status::EVENT_LIMIT));
    s.controller.set_ana(AnaState::Inaccessible);
    assert_eq!(s.heard(), [], "not enabled");
    let told = |s: &mut Scene, heard: Vec<Heard>, id| {
        let events: Vec<_> = heard.into_iter().filter(|h| matches!(h, Heard::Done { id: i, .. } if *i == id)).collect();
        assert!(matches!(events[..], [Heard::Done { status: Status::OK, value: 0x000c_0302, .. }]), "{events:?}");
        let page = s.data(Command::log_page(2, 0xc, 52).dword(10, 0xc | 12 << 16 | 1 << 15));
        (page[32], u32_at(&page, 0))
    };
    let heard = s.send(Command::set_feature(1, 0xb, 1 << 11));
    assert_eq!(told(&mut s, heard, 20), (3, 1));
    s.controller.set_ana(AnaState::Optimized);
    assert_eq!(s.heard(), [], "the log page was read, and the event kept");
    assert_eq!(s.data(Command::log_page(3, 0xc, 52))[32], 1);
    assert_eq!(s.send(Command::event_request(24)).len(), 1, "what changed meanwhile");
}

#[test]
fn a_discovery_controller_lists_subsystems() {
    let target = Target { nqn: NQN.into(), address: "127.0.0.1:4420".parse().unwrap(), port_id: 1 };
    let mut s = Scene::new(Role::Discovery(vec![target]), Digests::default(), 0);
    assert_eq!(s.value(Command::property_set(1, 0x14, 0x46_0001)), Ok(0));
    assert!(!s.controller.is_ready(), "it has no I/O queues");
    let c = s.data(Command::identify(2, 1, 0));
    assert_eq!((c[111], &c[768..768 + DISCOVERY_NQN.len()]), (2, DISCOVERY_NQN.as_bytes()));
    let log = s.data(Command::log_page(3, 0x70, 2048));
    assert_eq!((u32_at(&log, 8), &log[1024..1027]), (1, &[3, 1, 2][..]));
    assert_eq!(log[1024 + 32..1024 + 37], *b"4420 ");
    assert_eq!(&log[1024 + 256..1024 + 257 + NQN.len()], format!("{NQN}\0").as_bytes());
    assert_eq!(log[1024 + 512..1024 + 522], *b"127.0.0.1 ");
    assert_eq!(s.value(Command::identify(4, 0, 1)), Err(Status::INVALID_FIELD));
    assert_eq!(s.value(Command::log_page(5, 2, 512)), Err(Status::INVALID_LOG));
}

#[test]
fn a_host_that_is_silent_expires() {
    let namespace = Namespace { blocks: 8, read_only: false };
    let subsystem = Subsystem { nqn: NQN.into(), serial: "s".into(), uuid: [7; 16], namespace, queues_max: 1 };
    let mut s = Scene::new(Role::Io(subsystem), Digests::default(), 5000);
    assert_eq!(s.controller.expires_at_ms(), Some(10_000));
    s.now_ms = 4000;
    assert_eq!(s.value(Command::keep_alive(1)), Ok(0), "also while it is disabled");
    assert_eq!(s.controller.expires_at_ms(), Some(14_000));
}

/// Nobody needs a grant for a discovery controller.
#[test]
fn a_discovery_controller_expires_though_its_host_asks_for_no_keep_alive() {
    let mut s = Scene::new(Role::Discovery(Vec::new()), Digests::default(), 0);
    assert_eq!(s.controller.expires_at_ms(), Some(120_000));
    // Bytes that are no command yet don't count: a host that sends one a minute says nothing.
    s.now_ms = 60_000;
    let mut bytes = Vec::new();
    Command::property_set(1, 0x14, 0x46_0001).send(&mut bytes, s.digests, &[]);
    s.controller.take(s.now_ms, &mut &bytes[..10]).expect("no fault");
    assert_eq!(s.controller.expires_at_ms(), Some(120_000));
    s.controller.take(s.now_ms, &mut &bytes[10..]).expect("no fault");
    assert_eq!((s.heard().len(), s.controller.expires_at_ms()), (1, Some(180_000)));
    assert_eq!(s.value(Command::set_feature(2, 0xf, 30_000)), Ok(0));
    assert_eq!(s.controller.expires_at_ms(), Some(120_000), "its keep-alive counts then");
    assert_eq!(Scene::io().controller.expires_at_ms(), None, "a granted host may be silent");
}

#[test]
fn a_connect_that_is_malformed_names_what_is_wrong() {
    let answer = |change: fn(&mut Command, &mut [u8; 1024])| {
        let mut command = Command::connect(5, 1, 32, 0, true);
        let mut data = connect_data(7, [9; 16], HOST, NQN);
        change(&mut command, &mut data);
        let mut bytes = parameters(Digests::default()).to_vec();
        command.send(&mut bytes, Digests::default(), &data);
        let mut opening = Opening::default();
        let asked = opening.take(&mut &bytes[..]).expect("no fault");
        if asked.is_some() {
            opening.refuse(Status::CONNECT_PARAMETER, Some(Parameter::Queue));
        }
        assert!(opening.is_over());
        let out = opening.output()[128..].to_vec();
        (u32_at(&out, 8), u16::from_le_bytes([out[22], out[23]]) >> 1)
    };
    let parameter = 0x4182;
    assert_eq!(answer(|_, _| ()), (42, parameter), "the driver's refusal");
    assert_eq!(answer(|c, _| c.0[44] = 0), (44, parameter));
    assert_eq!(answer(|c, _| c.0[44] = 128), (44, parameter));
    assert_eq!(answer(|_, d| d[16..18].fill(0xff)), (1 << 16 | 16, parameter));
    assert_eq!(answer(|_, d| d[256] = b'x'), (1 << 16 | 256, parameter));
    assert_eq!(answer(|_, d| d[512..768].fill(b'x')), (1 << 16 | 512, parameter));
    assert_eq!(answer(|c, _| c.0[40] = 1), (0, 0x4180));
    assert_eq!(answer(|c, _| c.0[32] = 1), (0, 0x400f));
    assert_eq!(answer(|c, _| c.0[4] = 4), (0, 0x400c));
}

#[test]
fn parameters_that_are_malformed_end_the_connection() {
    let fault = |change: fn(&mut [u8; 128])| {
        let mut bytes = parameters(Digests::default());
        change(&mut bytes);
        let mut opening = Opening::default();
        let fault = opening.take(&mut &bytes[..]).expect_err("a fault");
        (fault, opening.output()[8])
    };
    assert_eq!(fault(|b| b[0] = 4), (Fault::Sequence, 2));
    assert_eq!(fault(|b| b[2] = 72), (Fault::Field(2), 1));
    assert_eq!(fault(|b| b[4] = 120), (Fault::Field(4), 1));
    assert_eq!(fault(|b| b[5] = 1), (Fault::Limit, 5));
    assert_eq!(fault(|b| b[8] = 1), (Fault::Parameter(8), 6));
    assert_eq!(fault(|b| b[10] = 32), (Fault::Field(10), 1));
}
