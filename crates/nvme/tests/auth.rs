//! Authentication of a queue: hosts that prove themselves, and every way to fail.

use plimsoll_base::Rng;
use plimsoll_nvme::auth::groups::{EXPONENT_BYTES, Group};
use plimsoll_nvme::auth::prover::Prover;
use plimsoll_nvme::auth::secret::{Hash, Secret};
use plimsoll_nvme::auth::{Parties, Proof, Random, Reason};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command, Ear, Heard, connect_data, parameters};
use plimsoll_nvme::opening::{Asked, Opening};
use plimsoll_nvme::pdu::Digests;

const HOST: &str = "nqn.2026-11.test:host";
const NQN: &str = "nqn.2026-11.test:volume";
const BOTH: Digests = Digests { header: true, data: true };

fn secret(byte: u8) -> Secret {
    Secret::of(&[byte; 32]).expect("a secret's length")
}

fn parties(subsystem_secret: Option<Secret>) -> Parties {
    Parties { host: HOST.into(), subsystem: NQN.into(), host_secret: secret(1), subsystem_secret }
}

fn random(seed: u64) -> Random {
    let mut rng = Rng::new(seed, "auth");
    let mut bytes = || std::array::from_fn(|_| rng.next_u64() as u8);
    Random { challenge: bytes(), exponent: bytes(), sequence: seed as u32 }
}

/// A connection whose host has sent its Connect, and was asked to prove itself.
struct Scene {
    opening: Opening,
    ear: Ear,
    id: u16,
}

impl Scene {
    fn new(parties: Parties, seed: u64) -> Scene {
        let mut bytes = parameters(BOTH).to_vec();
        Command::connect(3, 1, 32, 0, true).send(&mut bytes, BOTH, &connect_data(7, [9; 16], HOST, NQN));
        let mut opening = Opening::default();
        assert!(matches!(opening.take(&mut &bytes[..]), Ok(Some(Asked::Connect(_)))));
        opening.demand_proof(7, Proof::new(parties, random(seed)));
        let mut scene = Scene { opening, ear: Ear::default(), id: 3 };
        let heard = scene.heard();
        assert_eq!(heard[0], Heard::Parameters(BOTH, 1 << 20));
        // The controller's number, and that authentication is required.
        let value = 7 | 1 << 17;
        assert_eq!(heard[1], Heard::Done { id: 3, status: Status::OK, value, head: 1 });
        scene
    }

    fn heard(&mut self) -> Vec<Heard> {
        let out = std::mem::take(self.opening.output());
        let mut input = &out[..];
        std::iter::from_fn(|| self.ear.take(&mut input).expect("a target's PDUs")).collect()
    }

    fn command(&mut self, make: impl FnOnce(u16) -> Command, data: &[u8]) -> (Option<Asked>, Vec<Heard>) {
        self.id += 1;
        let mut bytes = Vec::new();
        make(self.id).send(&mut bytes, BOTH, data);
        let asked = self.opening.take(&mut &bytes[..]).expect("no fault");
        (asked, self.heard())
    }

    /// Sends a message. Returns whether the queue is proved.
    fn send(&mut self, message: &[u8]) -> bool {
        let (asked, heard) = self.command(|id| Command::authentication_send(id, message.len() as u32), message);
        assert!(matches!(heard[..], [Heard::Done { status: Status::OK, .. }]), "{heard:?}");
        asked == Some(Asked::Proved)
    }

    /// Fetches a message. Returns it, and whether the queue is proved.
    fn receive(&mut self) -> (Vec<u8>, bool) {
        let (asked, heard) = self.command(|id| Command::authentication_receive(id, 4096), &[]);
        let Some(Heard::Data { data, .. }) = heard.into_iter().next() else { panic!("no message") };
        assert_eq!(data.len(), 4096, "padded to what was asked for");
        (data, asked == Some(Asked::Proved))
    }

    /// Fetches the reason of a failure, after which nothing is served.
    fn failure(&mut self) -> u8 {
        let (data, is_proved) = self.receive();
        assert!(!is_proved && self.opening.is_over());
        assert_eq!(data[..2], [1, 0xf0]);
        data[7]
    }
}

fn prover(subsystem_secret: Option<Secret>) -> Prover {
    Prover::new(parties(subsystem_secret), 0x1234, [0x77; 64], [0x31; EXPONENT_BYTES])
}

#[test]
fn hosts_prove_themselves_with_every_hash_and_group() {
    for (seed, hash) in (1..).zip(Hash::ALL) {
        for group in Group::ALL {
            for mutual in [false, true] {
                let shared = mutual.then(|| secret(2));
                let (mut scene, mut prover) = (Scene::new(parties(shared.clone()), seed), prover(shared));
                assert!(!scene.send(&prover.negotiate(&[hash], &[group])));
                let (challenge, _) = scene.receive();
                let reply = prover.reply(&challenge).expect("a challenge");
                assert!(!scene.send(&reply));
                let (success, is_proved) = scene.receive();
                assert!(prover.accepts(&success), "{hash:?} {group:?} {mutual}");
                assert_eq!(is_proved, !mutual);
                if mutual {
                    assert!(scene.send(&prover.verdict(true)));
                }
                scene.opening.accept_proved();
            }
        }
    }
}

#[test]
fn secrets_are_bound_to_names_and_challenges() {
    let bound = Secret::parse(&Secret::of(&[4; 48]).unwrap().to_text().replacen(":00:", ":02:", 1)).unwrap();
    let with = |host_secret: &Secret, host: &str| {
        let parties = Parties { host: host.into(), host_secret: host_secret.clone(), ..parties(None) };
        Prover::new(parties, 9, [0; 64], [1; EXPONENT_BYTES])
    };
    let outcome = |host_secret: &Secret, mut prover: Prover| {
        let mut scene = Scene::new(Parties { host_secret: host_secret.clone(), ..parties(None) }, 5);
        scene.send(&prover.negotiate(&[Hash::Sha256], &[Group::Null]));
        let reply = prover.reply(&scene.receive().0).expect("a challenge");
        scene.send(&reply);
        scene.receive().1
    };
    assert!(outcome(&bound, with(&bound, HOST)));
    assert!(!outcome(&bound, with(&bound, "nqn.2026-11.test:other")), "another host's name");
    assert!(!outcome(&bound, with(&secret(1), HOST)), "another secret");
    assert!(!outcome(&secret(1), with(&secret(2), HOST)));
    // A reply to one challenge is none to another.
    let mut first = Scene::new(parties(None), 1);
    let mut second = Scene::new(parties(None), 2);
    let mut prover = prover(None);
    for scene in [&mut first, &mut second] {
        scene.send(&prover.negotiate(&[Hash::Sha256], &[Group::Null]));
    }
    let reply = prover.reply(&first.receive().0).expect("a challenge");
    second.receive();
    second.send(&reply);
    assert_eq!(second.failure(), Reason::Failed as u8);
    assert_eq!(second.opening.failure(), Some(Reason::Failed));
}

#[test]
fn a_host_that_asks_for_a_proof_gets_it_or_is_refused() {
    // Its own challenge sent back, a challenge without a number, and a subsystem without a secret.
    for (case, subsystem_secret) in [("echo", Some(secret(2))), ("zero", Some(secret(2))), ("none", None)] {
        let (mut scene, mut prover) = (Scene::new(parties(subsystem_secret), 3), prover(Some(secret(2))));
        scene.send(&prover.negotiate(&[Hash::Sha256], &[Group::Null]));
        let challenge = scene.receive().0;
        let mut reply = prover.reply(&challenge).expect("a challenge");
        match case {
            "echo" => reply[48..80].copy_from_slice(&challenge[16..48]),
            "zero" => reply[12..16].fill(0),
            _ => {}
        }
        scene.send(&reply);
        assert_eq!(scene.failure(), Reason::Failed as u8, "{case}");
    }
    // A subsystem with another secret is not accepted by the host, which says so: the queue is never served.
    let (mut scene, mut prover) = (Scene::new(parties(Some(secret(3))), 4), prover(Some(secret(2))));
    scene.send(&prover.negotiate(&[Hash::Sha256], &[Group::Null]));
    let reply = prover.reply(&scene.receive().0).expect("a challenge");
    scene.send(&reply);
    let (success, is_proved) = scene.receive();
    assert!(!is_proved && !prover.accepts(&success));
    assert!(!scene.send(&prover.verdict(false)) && scene.opening.is_over());
}

#[test]
fn malformed_messages_name_the_reason() {
    let negotiate = || prover(None).negotiate(&[Hash::Sha256], &[Group::Null]);
    let refused = |change: fn(&mut Vec<u8>)| {
        let (mut message, mut scene) = (negotiate(), Scene::new(parties(None), 6));
        change(&mut message);
        scene.send(&message);
        scene.failure()
    };
    assert_eq!(refused(|m| m[6] = 1), Reason::Concatenation as u8);
    assert_eq!(refused(|m| m[8] = 2), Reason::Protocol as u8);
    assert_eq!(refused(|m| m[7] = 0), Reason::Protocol as u8);
    assert_eq!(refused(|m| m.truncate(70)), Reason::Protocol as u8);
    assert_eq!(refused(|m| m[12] = 9), Reason::Hash as u8);
    assert_eq!(refused(|m| m[42] = 9), Reason::Group as u8);
    assert_eq!(refused(|m| m[10] = 31), Reason::Payload as u8);
    assert_eq!(refused(|m| m[1] = 2), Reason::Message as u8);
    assert_eq!(refused(|m| m.truncate(7)), Reason::Payload as u8);
    let reply = |change: fn(&mut Vec<u8>)| {
        let (mut scene, mut prover) = (Scene::new(parties(None), 7), prover(None));
        scene.send(&negotiate());
        let mut reply = prover.reply(&scene.receive().0).expect("a challenge");
        change(&mut reply);
        scene.send(&reply);
        scene.failure()
    };
    assert_eq!(reply(|m| m[16] ^= 1), Reason::Failed as u8);
    assert_eq!(reply(|m| m[6] = 31), Reason::Payload as u8);
    assert_eq!(reply(|m| m[10] = 1), Reason::Payload as u8);
    assert_eq!(reply(|m| m[4] ^= 1), Reason::Payload as u8, "another transaction");
    assert_eq!(reply(|m| m.truncate(79)), Reason::Payload as u8);
    assert_eq!(reply(|m| m[1] = 0), Reason::Message as u8);
}

#[test]
fn an_unproved_queue_serves_nothing() {
    for make in [
        Command::keep_alive as fn(u16) -> Command,
        |id| Command::read(id, 0, 1),
        |id| Command::property_get(id, 0, true),
    ] {
        let mut scene = Scene::new(parties(None), 8);
        let (asked, heard) = scene.command(make, &[]);
        assert_eq!(asked, None);
        assert!(matches!(heard[..], [Heard::Done { status: Status::NOT_AUTHENTICATED, .. }]), "{heard:?}");
        assert!(scene.opening.is_over());
    }
    // A message is fetched before there is one, one that is too long for the host, and data of no protocol.
    let mut scene = Scene::new(parties(None), 8);
    let (_, heard) = scene.command(|id| Command::authentication_receive(id, 4096), &[]);
    assert!(matches!(heard[..], [Heard::Done { status: Status::SEQUENCE, .. }]));
    let mut scene = Scene::new(parties(None), 8);
    scene.send(&prover(None).negotiate(&[Hash::Sha256], &[Group::Null]));
    let (_, heard) = scene.command(|id| Command::authentication_receive(id, 20), &[]);
    assert!(matches!(heard[..], [Heard::Done { status: Status::INVALID_FIELD, .. }]));
    for (at, value) in [(41, 2), (42, 2), (43, 2), (44, 1)] {
        let mut scene = Scene::new(parties(None), 8);
        let (_, heard) = scene.command(
            |id| {
                let mut command = Command::authentication_send(id, 72);
                command.0[at] = value;
                command
            },
            &[0; 72],
        );
        assert!(!matches!(heard[..], [Heard::Done { status: Status::OK, .. }]), "byte {at}");
        assert!(scene.opening.is_over());
    }
}
