//! How frames are written between nodes: length, checksum, kind, and what the kind has.
//!
//! ```text
//! u32 length of what follows the checksum │ u32 crc32c of it │ u8 kind │ …
//! ```
//!
//! Only a peer that has proven who it is gets so far, but its bytes may still be damaged on the way.

use bytes::BytesMut;
use ordain_link::{End, Frame, Hello, Life};
use ordain_model::wire::{Codec, Form, Reader};
use ordain_role::Bytes;

use super::output::Output;

/// Length and checksum.
const HEAD: usize = 8;
/// The most that stands before the payload of a message.
const ABOUT: usize = 64;

const HELLO: u8 = 0;
const DATA: u8 = 1;
const ACK: u8 = 2;
const PING: u8 = 3;
const PONG: u8 = 4;

/// What a frame goes on with that has no large end.
static NOTHING: Bytes = Bytes::new();

/// A message between two roles, as it travels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parcel {
    /// The number of the role that sent it.
    pub(super) from: u16,
    /// The number of the role that it is for.
    pub(super) to: u16,
    /// The message,
    pub(super) payload: Bytes,
    /// and how it goes on: bytes that the sender shares.
    pub(super) tail: Bytes,
}

impl Parcel {
    /// The approximate number of bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.payload.len() + self.tail.len() + ABOUT
    }
}

/// What one frame on the wire is. The payload of [`Frame::Data`] stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    Link(Frame<()>),
    Data {
        frame: Frame<()>,
        from: u16,
        to: u16,
        payload: Bytes,
    },
    /// Asks for a [`Packet::Pong`] with the same number.
    Ping(u64),
    Pong(u64),
}

/// The bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

fn frame(out: &mut Output, kind: u8, tail: &Bytes, write: impl FnOnce(&mut Vec<u8>)) {
    let small = out.small();
    let start = small.len();
    small.extend_from_slice(&[0; HEAD]);
    small.push(kind);
    write(small);
    let body = &small[start + HEAD..];
    let (len, crc) = (body.len() + tail.len(), crc32c::crc32c_append(crc32c::crc32c(body), tail));
    small[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
    small[start + 4..start + HEAD].copy_from_slice(&crc.to_le_bytes());
    out.share(tail);
}

/// The form of an end that may be none, which a life of 0 stands for.
enum Zeroable {}

impl Form<Option<End>> for Zeroable {
    const LEAST: usize = End::LEAST;

    fn encode(end: &Option<End>, out: &mut Vec<u8>) {
        end.unwrap_or(End { life: Life(0), stream: 0 }).encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Option<End>> {
        let end = End::decode(bytes)?;
        Some((end.life.0 != 0).then_some(end))
    }
}

/// Appends a frame of a link.
pub(super) fn write_link(out: &mut Output, link: &Frame<Parcel>) {
    match link {
        Frame::Hello(hello) => frame(out, HELLO, &NOTHING, |out| {
            let (heard, its_bound) = hello.heard.map_or((None, None), |(end, bound)| (Some(end), bound));
            [Some(hello.me), hello.bound, heard, its_bound].iter().for_each(|end| Zeroable::encode(end, out));
            (hello.received, hello.is_settled).encode(out);
        }),
        Frame::Data { to, sequence, received, payload } => frame(out, DATA, &payload.tail, |out| {
            (*to, *sequence, *received).encode(out);
            (payload.from, payload.to).encode(out);
            out.extend_from_slice(&payload.payload);
        }),
        Frame::Ack { to, received } => frame(out, ACK, &NOTHING, |out| {
            (*to, *received).encode(out);
        }),
    }
}

/// Appends a question for a sign of life.
pub(super) fn write_ping(out: &mut Output, number: u64) {
    frame(out, PING, &NOTHING, |out| number.encode(out));
}

/// Appends the answer.
pub(super) fn write_pong(out: &mut Output, number: u64) {
    frame(out, PONG, &NOTHING, |out| number.encode(out));
}

fn read_body(body: &Bytes) -> Option<Packet> {
    let reader = &mut Reader::new(body);
    let packet = match reader.u8()? {
        HELLO => {
            let (me, bound) = (Zeroable::decode(reader)??, Zeroable::decode(reader)?);
            let (heard, its_bound) = (Zeroable::decode(reader)?, Zeroable::decode(reader)?);
            let (received, is_settled) = Codec::decode(reader)?;
            let heard = heard.map(|end| (end, its_bound));
            Packet::Link(Frame::Hello(Hello { me, bound, heard, received, is_settled }))
        }
        DATA => {
            let to = Zeroable::decode(reader)??;
            let ((sequence, received), (from, to_role)) = Codec::decode(reader)?;
            let payload = body.slice_ref(reader.take_rest());
            let frame = Frame::Data { to, sequence, received, payload: () };
            Packet::Data { frame, from, to: to_role, payload }
        }
        ACK => Packet::Link(Frame::Ack { to: Zeroable::decode(reader)??, received: reader.u64()? }),
        PING => Packet::Ping(reader.u64()?),
        PONG => Packet::Pong(reader.u64()?),
        _ => return None,
    };
    reader.end(packet)
}

/// Takes the first packet, if all of it is there; makes room for it if not. A message may hold `limit` bytes.
pub(super) fn read(input: &mut BytesMut, limit: usize) -> Result<Option<Packet>, Damaged> {
    let mut reader = Reader::new(input);
    let (Some(len), Some(crc)) = (reader.u32(), reader.u32()) else { return Ok(None) };
    let len = len as usize;
    if len > limit.saturating_add(ABOUT) {
        return Err(Damaged);
    }
    let Some(missing) = len.checked_sub(reader.rest().len()).filter(|missing| *missing > 0) else {
        let body = input.split_to(HEAD + len).freeze().slice(HEAD..);
        if crc32c::crc32c(&body) != crc {
            return Err(Damaged);
        }
        return read_body(&body).ok_or(Damaged).map(Some);
    };
    input.reserve(missing);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::wire::u32;
    use proptest::prelude::*;

    const A: End = End { life: Life(5), stream: 7 };
    const B: End = End { life: Life(9), stream: 1 };

    fn all() -> Vec<u8> {
        let mut out = Output::default();
        let hello = Hello { me: A, bound: Some(B), heard: Some((B, None)), received: 4, is_settled: true };
        write_link(&mut out, &Frame::Hello(hello));
        let (payload, tail) = (Bytes::from_static(b"hello"), Bytes::from_static(b", you"));
        let parcel = Parcel { from: 16, to: 2, payload, tail };
        write_link(&mut out, &Frame::Data { to: B, sequence: 8, received: 3, payload: parcel });
        write_link(&mut out, &Frame::Ack { to: B, received: 3 });
        write_ping(&mut out, 11);
        write_pong(&mut out, 12);
        std::mem::take(out.small())
    }

    #[test]
    fn what_is_written_is_read() {
        // However it arrives.
        for step in [1, 7, 1000] {
            let (mut input, mut packets) = (BytesMut::new(), Vec::new());
            for piece in all().chunks(step) {
                input.extend_from_slice(piece);
                while let Some(packet) = read(&mut input, 100).unwrap() {
                    packets.push(packet);
                }
            }
            let hello =
                Hello { me: A, bound: Some(B), heard: Some((B, None)), received: 4, is_settled: true };
            let frame = Frame::Data { to: B, sequence: 8, received: 3, payload: () };
            let payload = Bytes::from_static(b"hello, you");
            let expected = [
                Packet::Link(Frame::Hello(hello)),
                Packet::Data { frame, from: 16, to: 2, payload },
                Packet::Link(Frame::Ack { to: B, received: 3 }),
                Packet::Ping(11),
                Packet::Pong(12),
            ];
            assert_eq!((packets, &input[..]), (expected.into(), &[][..]));
        }
    }

    #[test]
    fn a_length_that_is_too_large_is_damage_before_there_are_so_many_bytes() {
        let mut head = Vec::new();
        u32(&mut head, u32::MAX);
        u32(&mut head, 0);
        assert_eq!(read(&mut BytesMut::from(&head[..]), 1 << 20), Err(Damaged));
    }

    /// The fuzz target of what follows the handshake: damaged frames in pieces. Nothing is read that was not written.
    #[test]
    fn fuzz_frames() {
        ordain_fuzz::target("frames", 3000, |source| {
            let good = all();
            let mut bad = good.repeat(source.within(1..4));
            source.damage(&mut bad);
            let mut written = Vec::new();
            let mut whole = BytesMut::from(&good[..]);
            while let Ok(Some(packet)) = read(&mut whole, 100) {
                written.push(packet);
            }
            let mut input = BytesMut::new();
            let mut rest = &bad[..];
            'connection: while !rest.is_empty() {
                let (piece, after) = rest.split_at(source.within(1..rest.len() + 1));
                rest = after;
                input.extend_from_slice(piece);
                loop {
                    match read(&mut input, 100) {
                        Ok(Some(packet)) => assert!(written.contains(&packet), "{packet:?}"),
                        Ok(None) => break,
                        Err(Damaged) => break 'connection,
                    }
                }
            }
            let _ = read_body(&source.bytes(0..200).into());
        });
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_found(at in any::<prop::sample::Index>(), change in 1u8..) {
            let good = all();
            let mut bad = good.clone();
            let at = at.index(bad.len());
            bad[at] ^= change;
            let (mut bad, mut good) = (BytesMut::from(&bad[..]), BytesMut::from(&good[..]));
            let whole = good.len();
            while let Ok(Some(packet)) = read(&mut bad, 100) {
                prop_assert_eq!(Ok(Some(packet)), read(&mut good, 100));
            }
            prop_assert!(whole - good.len() <= at);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&mut BytesMut::from(&bytes[..]), 100);
            let _ = read_body(&bytes.into());
        }
    }
}
