//! How two nodes find out that they belong together, before either believes a word of the other.
//!
//! ```text
//! dialer                                acceptor
//!   Greeting ────────────────────────────▶        who I am, whom I want, a nonce
//!            ◀──────────────────────────── Greeting
//!   Proof    ────────────────────────────▶        HMAC-SHA256 by the secret of the cluster
//!            ◀──────────────────────────── Proof
//! ```
//!
//! A proof is over both greetings, so over both nonces, and over which of the two sides it is from: it is of no use on
//! another connection, and not when sent back. A side that refuses what it reads answers
//! with a [`Refusal`]. As that may come before the proof, a refusal is not proven: `/status` has it, and no code relies on it.
//! The bytes that follow are not encrypted or signed: the network between nodes must be one's own.
//!
//! A message is at most [`HEAD`] + 255 bytes; more is garbage.

use std::fmt;

use bytes::{Buf as _, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use ordain_link::Life;
use ordain_model::codec;
use ordain_model::wire::{Codec as _, Reader};
use ordain_role::NodeId;
use sha2::{Digest, Sha256};

/// The version of the handshake and of everything after it.
pub(super) const VERSION: u16 = 25;
const MAGIC: [u8; 4] = *b"ORDN";
/// Magic, version, kind, length.
const HEAD: usize = 8;

const GREETING: u8 = 1;
const PROOF: u8 = 2;
const REFUSAL: u8 = 3;

/// The reason why two nodes do not belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The other side does not speak this protocol at all.
    Garbage,
    /// The versions of the two nodes cannot talk to each other.
    Version,
    /// The other node belongs to another cluster.
    Cluster,
    /// Both belong to the cluster, and their configurations of it differ.
    Fingerprint,
    /// The other node is not the one that the configuration has at its address, or was looking for another than this.
    Node,
    /// The other node does not know the secret.
    Secret,
    /// The other node sends messages that this one cannot read.
    Message,
    /// The certificate of the other node, or this one's, is not accepted, or one of the two speaks no TLS.
    Tls,
}

impl Refusal {
    const ALL: [Refusal; 8] = [
        Refusal::Garbage,
        Refusal::Version,
        Refusal::Cluster,
        Refusal::Fingerprint,
        Refusal::Node,
        Refusal::Secret,
        Refusal::Message,
        Refusal::Tls,
    ];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Garbage => "what answers there is not a node of ordain: check the address",
            Refusal::Version => "the nodes run versions that cannot talk to each other: run the same one",
            Refusal::Cluster => {
                "the nodes belong to different clusters: check the cluster id and the addresses"
            }
            Refusal::Fingerprint => {
                "the nodes have different configurations of the cluster: give all of them the same file"
            }
            Refusal::Node => {
                "the node there is not the one of the configuration: check the node's number and address"
            }
            Refusal::Secret => "the nodes have different secrets: give all of them the same one",
            Refusal::Message => {
                "the other node sends what this one cannot read: run the same version on both"
            }
            Refusal::Tls => {
                "TLS with the other node failed: check the certificates, the authority and the names in [tls], on both"
            }
        })
    }
}

/// The identity that a node gives to every other.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) node: NodeId,
    pub(super) life: Life,
    pub(super) cluster: [u8; 16],
    pub(super) fingerprint: u64,
    pub(super) secret: Vec<u8>,
}

impl fmt::Debug for Identity {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("node", &self.node).field("life", &self.life).finish_non_exhaustive()
    }
}

/// The cluster's id as it travels.
pub(super) fn cluster_id(name: &str) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&Sha256::digest(name.as_bytes())[..16]);
    id
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Greeting {
    cluster: [u8; 16],
    fingerprint: u64,
    from: NodeId,
    to: NodeId,
    life: Life,
    nonce: [u8; 32],
}

codec!(struct Greeting { cluster, fingerprint, from, to, life, nonce });

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Dialer,
    Acceptor,
}

#[derive(Debug)]
enum Stage {
    /// Waits for the other side's greeting.
    Greeting,
    /// Waits for its proof.
    Proof(Greeting),
}

/// One side of a handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    side: Side,
    /// The node that a dialer wants. An acceptor takes any that proves to be of the cluster.
    peer: Option<NodeId>,
    nonce: [u8; 32],
    /// Our greeting, as it was sent.
    greeting: Vec<u8>,
    stage: Stage,
}

/// The reason why a handshake has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: Refusal,
    /// Who the other side says it is; unproven.
    pub(super) claimed: Option<NodeId>,
}

fn message(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.extend_from_slice(&MAGIC);
    let len = u8::try_from(body.len()).expect("the messages of a handshake are of fixed sizes below 256");
    (VERSION, kind, len).encode(out);
    out.extend_from_slice(body);
}

/// Appends a refusal.
pub(super) fn refuse(out: &mut Vec<u8>, reason: Refusal) {
    message(out, REFUSAL, &[reason as u8]);
}

impl Handshake {
    /// The side that dials `peer`; says the first word.
    pub(super) fn dial(identity: &Identity, peer: NodeId, nonce: [u8; 32], out: &mut Vec<u8>) -> Handshake {
        let mut handshake = Handshake {
            side: Side::Dialer,
            peer: Some(peer),
            nonce,
            greeting: Vec::new(),
            stage: Stage::Greeting,
        };
        handshake.greet(identity, peer, out);
        handshake
    }

    /// The side that is dialled.
    pub(super) fn accept(nonce: [u8; 32]) -> Handshake {
        Handshake { side: Side::Acceptor, peer: None, nonce, greeting: Vec::new(), stage: Stage::Greeting }
    }

    /// Takes what has arrived and appends the answer; who the other side is, once that is proven. `input` loses what
    /// was read.
    pub(super) fn take(
        &mut self,
        identity: &Identity,
        input: &mut BytesMut,
        out: &mut Vec<u8>,
    ) -> Result<Option<NodeId>, Failure> {
        loop {
            let mut reader = Reader::new(input);
            // What is not ours from the first bytes on is not waited for.
            let seen = input.len().min(MAGIC.len());
            if input[..seen] != MAGIC[..seen] {
                return Err(self.failure(Refusal::Garbage));
            }
            let (Some(_), Some(version), Some(kind), Some(len)) =
                (reader.u32(), reader.u16(), reader.u8(), reader.u8())
            else {
                return Ok(None);
            };
            if version != VERSION {
                // A refusal for this very reason says no more than that.
                if kind != REFUSAL {
                    refuse(out, Refusal::Version);
                }
                return Err(self.failure(Refusal::Version));
            }
            let Some(body) = reader.take(usize::from(len)) else { return Ok(None) };
            let body = body.to_vec();
            let taken = HEAD + body.len();
            input.advance(taken);
            if kind == REFUSAL {
                let reason = body.first().and_then(|code| Refusal::ALL.get(usize::from(*code)));
                return Err(self.failure(reason.copied().unwrap_or(Refusal::Garbage)));
            }
            match self.step(identity, kind, &body, out) {
                Ok(None) => {}
                Ok(Some(node)) => return Ok(Some(node)),
                Err(failure) => {
                    refuse(out, failure.reason);
                    return Err(failure);
                }
            }
        }
    }

    fn step(
        &mut self,
        identity: &Identity,
        kind: u8,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<NodeId>, Failure> {
        match (&self.stage, kind) {
            (Stage::Greeting, GREETING) => {
                let theirs = Greeting::from_bytes(body)
                    .filter(|greeting| greeting.life.0 != 0)
                    .ok_or_else(|| self.failure(Refusal::Garbage))?;
                let wrong = if theirs.cluster != identity.cluster {
                    Some(Refusal::Cluster)
                } else if theirs.to != identity.node || self.peer.is_some_and(|peer| peer != theirs.from) {
                    Some(Refusal::Node)
                } else if self.side == Side::Acceptor && theirs.from >= identity.node {
                    // The lower number dials, and no node meets itself.
                    Some(Refusal::Node)
                } else if theirs.fingerprint != identity.fingerprint {
                    Some(Refusal::Fingerprint)
                } else {
                    None
                };
                self.stage = Stage::Proof(theirs);
                if let Some(reason) = wrong {
                    return Err(self.failure(reason));
                }
                match self.side {
                    Side::Acceptor => self.greet(identity, theirs.from, out),
                    Side::Dialer => self.prove(identity, &theirs, out),
                }
                Ok(None)
            }
            (Stage::Proof(theirs), PROOF) => {
                let theirs = *theirs;
                let other = if self.side == Side::Dialer { Side::Acceptor } else { Side::Dialer };
                if self.mac(identity, &theirs, other).verify_slice(body).is_err() {
                    return Err(self.failure(Refusal::Secret));
                }
                if self.side == Side::Acceptor {
                    self.prove(identity, &theirs, out);
                }
                Ok(Some(theirs.from))
            }
            _ => Err(self.failure(Refusal::Garbage)),
        }
    }

    fn greet(&mut self, identity: &Identity, to: NodeId, out: &mut Vec<u8>) {
        let Identity { node, life, cluster, fingerprint, .. } = *identity;
        let greeting = Greeting { cluster, fingerprint, from: node, to, life, nonce: self.nonce };
        self.greeting = greeting.to_bytes();
        message(out, GREETING, &self.greeting);
    }

    fn prove(&self, identity: &Identity, theirs: &Greeting, out: &mut Vec<u8>) {
        let proof = self.mac(identity, theirs, self.side).finalize().into_bytes();
        message(out, PROOF, &proof);
    }

    /// The proof of `side` that it knows the secret.
    fn mac(&self, identity: &Identity, theirs: &Greeting, side: Side) -> Hmac<Sha256> {
        let theirs = theirs.to_bytes();
        let (dialer, acceptor) = match self.side {
            Side::Dialer => (&self.greeting, &theirs),
            Side::Acceptor => (&theirs, &self.greeting),
        };
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&identity.secret).expect("HMAC takes keys of any length");
        mac.update(&MAGIC);
        mac.update(&VERSION.to_le_bytes());
        mac.update(&[if side == Side::Dialer { 1 } else { 2 }]);
        mac.update(dialer);
        mac.update(acceptor);
        mac
    }

    fn failure(&self, reason: Refusal) -> Failure {
        let claimed = match &self.stage {
            Stage::Proof(theirs) => Some(theirs.from),
            Stage::Greeting => self.peer,
        };
        Failure { reason, claimed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity(node: u16) -> Identity {
        Identity {
            node: NodeId(node),
            life: Life(u64::from(node) + 10),
            cluster: cluster_id("test"),
            fingerprint: 77,
            secret: b"secret".to_vec(),
        }
    }

    type Spoil = fn(&mut Identity);
    type Outcome = Result<Option<NodeId>, Failure>;

    /// What has arrived.
    fn input(bytes: &[u8]) -> BytesMut {
        BytesMut::from(bytes)
    }

    /// Carries a handshake to its end, changing the bytes of either side on the way.
    fn meet(
        dialer: &Identity,
        acceptor: &Identity,
        wanted: u16,
        mut change: impl FnMut(&mut Vec<u8>),
    ) -> [Outcome; 2] {
        let (mut to_acceptor, mut to_dialer) = (Vec::new(), Vec::new());
        let mut one = Handshake::dial(dialer, NodeId(wanted), [1; 32], &mut to_acceptor);
        let mut other = Handshake::accept([2; 32]);
        let mut ends = [Ok(None), Ok(None)];
        let mut inputs = [BytesMut::new(), BytesMut::new()];
        while !to_acceptor.is_empty() || !to_dialer.is_empty() {
            change(&mut to_acceptor);
            inputs[1].extend(to_acceptor.drain(..));
            if ends[1] == Ok(None) {
                ends[1] = other.take(acceptor, &mut inputs[1], &mut to_dialer);
            }
            inputs[0].extend(to_dialer.drain(..));
            if ends[0] == Ok(None) {
                ends[0] = one.take(dialer, &mut inputs[0], &mut to_acceptor);
            }
        }
        ends
    }

    fn reasons(ends: [Outcome; 2]) -> [Option<Refusal>; 2] {
        ends.map(|end| end.err().map(|failure| failure.reason))
    }

    #[test]
    fn nodes_that_belong_together_know_each_other() {
        assert_eq!(meet(&identity(1), &identity(2), 2, |_| ()), [Ok(Some(NodeId(2))), Ok(Some(NodeId(1)))]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason_on_both_sides() {
        let cases: [(Spoil, Refusal); 4] = [
            (|id| id.secret.clear(), Refusal::Secret),
            (|id| id.cluster = cluster_id("other"), Refusal::Cluster),
            (|id| id.fingerprint += 1, Refusal::Fingerprint),
            (|id| id.node = NodeId(3), Refusal::Node),
        ];
        for (spoil, reason) in cases {
            let mut acceptor = identity(2);
            spoil(&mut acceptor);
            assert_eq!(reasons(meet(&identity(1), &acceptor, 2, |_| ())), [Some(reason); 2]);
        }
        // The higher number does not dial, and no node is its own peer.
        assert_eq!(reasons(meet(&identity(3), &identity(2), 2, |_| ())), [Some(Refusal::Node); 2]);
        assert_eq!(reasons(meet(&identity(2), &identity(2), 2, |_| ())), [Some(Refusal::Node); 2]);
        let newer = |bytes: &mut Vec<u8>| {
            if bytes.len() > 4 {
                bytes[4] = VERSION as u8 + 1;
            }
        };
        assert_eq!(reasons(meet(&identity(1), &identity(2), 2, newer)), [Some(Refusal::Version); 2]);
    }

    #[test]
    fn a_proof_does_not_serve_on_another_connection_or_sent_back() {
        let (dialer, acceptor) = (identity(1), identity(2));
        let mut sent = Vec::new();
        let ends = meet(&dialer, &acceptor, 2, |bytes| sent.push(bytes.clone()));
        assert_eq!(ends[1], Ok(Some(NodeId(1))));
        // Replayed to an acceptor with another nonce.
        let mut other = Handshake::accept([3; 32]);
        let mut out = Vec::new();
        assert_eq!(other.take(&acceptor, &mut input(&sent[0]), &mut out), Ok(None));
        let end = other.take(&acceptor, &mut input(&sent[1]), &mut out);
        assert_eq!(end.unwrap_err().reason, Refusal::Secret);
        // The dialer's own proof, sent back to it. The greeting that it takes for the acceptor's is real.
        let (mut hello, mut answer) = (Vec::new(), Vec::new());
        let mut one = Handshake::dial(&dialer, NodeId(2), [1; 32], &mut hello);
        Handshake::accept([2; 32]).take(&acceptor, &mut input(&hello), &mut answer).unwrap();
        let mut proof = Vec::new();
        assert_eq!(one.take(&dialer, &mut input(&answer), &mut proof), Ok(None));
        let end = one.take(&dialer, &mut input(&proof), &mut Vec::new());
        assert_eq!(end.unwrap_err().reason, Refusal::Secret);
    }

    #[test]
    fn what_speaks_another_protocol_is_found_at_its_first_bytes() {
        let mut out = Vec::new();
        let end = Handshake::accept([2; 32]).take(&identity(2), &mut input(b"GE"), &mut out);
        assert_eq!(end.unwrap_err(), Failure { reason: Refusal::Garbage, claimed: None });
        assert_eq!(out, []);
    }

    /// The fuzz target of the port for other nodes: damaged handshakes, from a peer without the secret and with it.
    #[test]
    fn fuzz_handshakes() {
        ordain_fuzz::target("handshakes", 3000, |source| {
            let (mut dialer, acceptor) = (identity(1), identity(2));
            let knows_secret = source.once_in(2);
            if !knows_secret {
                dialer.secret = source.bytes(0..20);
            }
            let mut is_damaged = false;
            let ends = meet(&dialer, &acceptor, 2, |bytes| {
                if source.once_in(2) {
                    let before = bytes.clone();
                    source.damage(bytes);
                    is_damaged |= *bytes != before;
                }
            });
            if !is_damaged {
                assert_eq!(ends[1] == Ok(Some(NodeId(1))), knows_secret);
            }
            if !knows_secret {
                assert!(!matches!(ends[1], Ok(Some(_))), "{ends:?}");
            }
        });
    }

    proptest! {
        #[test]
        fn no_peer_is_believed_after_a_byte_was_changed(at in 0usize..200, change in 1u8..) {
            let mut seen = 0;
            let [_, acceptor] = meet(&identity(1), &identity(2), 2, |bytes| {
                let here = at.wrapping_sub(seen);
                seen += bytes.len();
                if let Some(byte) = bytes.get_mut(here) {
                    *byte ^= change;
                }
            });
            // Greeting and proof of the dialer are 116 bytes together.
            prop_assert_eq!(acceptor == Ok(Some(NodeId(1))), at >= 116);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut input = input(&[&MAGIC[..], &bytes].concat());
            let _ = Handshake::accept([2; 32]).take(&identity(2), &mut input, &mut Vec::new());
        }
    }
}
