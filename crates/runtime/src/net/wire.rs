//! How frames are written between nodes: length, checksum, kind, and what the kind has.
//!
//! ```text
//! u32 length of what follows the checksum │ u32 crc32c of it │ u8 kind │ …
//! ```
//!
//! Only a peer that has proven who it is gets so far, but its bytes may still be damaged on the way.

use std::sync::Arc;

use ordain_link::{End, Frame, Hello, Life};
use ordain_model::wire::{Reader, u8, u16, u64};

/// Length and checksum.
const HEAD: usize = 8;
/// The most that stands before the payload of a message.
const ABOUT: usize = 64;

const HELLO: u8 = 0;
const DATA: u8 = 1;
const ACK: u8 = 2;
const PING: u8 = 3;
const PONG: u8 = 4;

/// A message between two roles, as it travels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parcel {
    /// The number of the role that sent it.
    pub(super) from: u16,
    /// The number of the role that it is for.
    pub(super) to: u16,
    /// The message.
    pub(super) payload: Arc<Vec<u8>>,
}

impl Parcel {
    /// How many bytes of memory it holds, about.
    pub(super) fn bytes(&self) -> usize {
        self.payload.len() + ABOUT
    }
}

/// What one frame on the wire is. The payload of [`Frame::Data`] stands beside it, because it is read in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Link(Frame<()>),
    Data {
        frame: Frame<()>,
        from: u16,
        to: u16,
        payload: &'a [u8],
    },
    /// Asks for a [`Packet::Pong`] with the same number.
    Ping(u64),
    Pong(u64),
}

/// The bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

fn frame(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    u8(out, kind);
    write(out);
    let body = &out[start + HEAD..];
    let (len, crc) = (body.len() as u32, crc32c::crc32c(body));
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + HEAD].copy_from_slice(&crc.to_le_bytes());
}

fn end(out: &mut Vec<u8>, end: End) {
    u64(out, end.life.0);
    u64(out, end.stream);
}

/// Life 0 is nobody's: it stands for "none".
fn end_or_none(out: &mut Vec<u8>, given: Option<End>) {
    end(out, given.unwrap_or(End { life: Life(0), stream: 0 }));
}

/// Appends a frame of a link.
pub(super) fn write_link(out: &mut Vec<u8>, link: &Frame<Parcel>) {
    match link {
        Frame::Hello(hello) => frame(out, HELLO, |out| {
            end(out, hello.me);
            end_or_none(out, hello.bound);
            let (heard, its_bound) = hello.heard.map_or((None, None), |(end, bound)| (Some(end), bound));
            end_or_none(out, heard);
            end_or_none(out, its_bound);
            u64(out, hello.received);
            u8(out, u8::from(hello.is_settled));
        }),
        Frame::Data { to, sequence, received, payload } => frame(out, DATA, |out| {
            end(out, *to);
            u64(out, *sequence);
            u64(out, *received);
            u16(out, payload.from);
            u16(out, payload.to);
            out.extend_from_slice(&payload.payload);
        }),
        Frame::Ack { to, received } => frame(out, ACK, |out| {
            end(out, *to);
            u64(out, *received);
        }),
    }
}

/// Appends a question for a sign of life.
pub(super) fn write_ping(out: &mut Vec<u8>, number: u64) {
    frame(out, PING, |out| u64(out, number));
}

/// Appends the answer.
pub(super) fn write_pong(out: &mut Vec<u8>, number: u64) {
    frame(out, PONG, |out| u64(out, number));
}

fn read_end(reader: &mut Reader<'_>) -> Option<Option<End>> {
    let end = End { life: Life(reader.u64()?), stream: reader.u64()? };
    Some((end.life.0 != 0).then_some(end))
}

fn read_body(body: &[u8]) -> Option<Packet<'_>> {
    let mut reader = Reader(body);
    let packet = match reader.u8()? {
        HELLO => {
            let me = read_end(&mut reader)??;
            let bound = read_end(&mut reader)?;
            let heard = read_end(&mut reader)?;
            let its_bound = read_end(&mut reader)?;
            let received = reader.u64()?;
            let is_settled = match reader.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let heard = heard.map(|end| (end, its_bound));
            Packet::Link(Frame::Hello(Hello { me, bound, heard, received, is_settled }))
        }
        DATA => {
            let to = read_end(&mut reader)??;
            let (sequence, received) = (reader.u64()?, reader.u64()?);
            let (from, to_role) = (reader.u16()?, reader.u16()?);
            let payload = std::mem::take(&mut reader.0);
            let frame = Frame::Data { to, sequence, received, payload: () };
            Packet::Data { frame, from, to: to_role, payload }
        }
        ACK => Packet::Link(Frame::Ack { to: read_end(&mut reader)??, received: reader.u64()? }),
        PING => Packet::Ping(reader.u64()?),
        PONG => Packet::Pong(reader.u64()?),
        _ => return None,
    };
    reader.end(packet)
}

/// The first packet and how many bytes it takes, if all of it is there. A message may hold `limit` bytes.
pub(super) fn read(input: &[u8], limit: usize) -> Result<Option<(Packet<'_>, usize)>, Damaged> {
    let mut reader = Reader(input);
    let (Some(len), Some(crc)) = (reader.u32(), reader.u32()) else { return Ok(None) };
    let len = len as usize;
    if len > limit.saturating_add(ABOUT) {
        return Err(Damaged);
    }
    let Some(body) = reader.0.get(..len) else { return Ok(None) };
    if crc32c::crc32c(body) != crc {
        return Err(Damaged);
    }
    Ok(Some((read_body(body).ok_or(Damaged)?, HEAD + len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::wire::u32;
    use proptest::prelude::*;

    const A: End = End { life: Life(5), stream: 7 };
    const B: End = End { life: Life(9), stream: 1 };

    fn all() -> Vec<u8> {
        let mut out = Vec::new();
        let hello = Hello { me: A, bound: Some(B), heard: Some((B, None)), received: 4, is_settled: true };
        write_link(&mut out, &Frame::Hello(hello));
        let parcel = Parcel { from: 16, to: 2, payload: Arc::new(b"hello".to_vec()) };
        write_link(&mut out, &Frame::Data { to: B, sequence: 8, received: 3, payload: parcel });
        write_link(&mut out, &Frame::Ack { to: B, received: 3 });
        write_ping(&mut out, 11);
        write_pong(&mut out, 12);
        out
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = all();
        let mut rest = &bytes[..];
        let mut packets = Vec::new();
        while let Some((packet, len)) = read(rest, 100).unwrap() {
            packets.push(packet);
            rest = &rest[len..];
        }
        let hello = Hello { me: A, bound: Some(B), heard: Some((B, None)), received: 4, is_settled: true };
        let frame = Frame::Data { to: B, sequence: 8, received: 3, payload: () };
        let expected = [
            Packet::Link(Frame::Hello(hello)),
            Packet::Data { frame, from: 16, to: 2, payload: b"hello" },
            Packet::Link(Frame::Ack { to: B, received: 3 }),
            Packet::Ping(11),
            Packet::Pong(12),
        ];
        assert_eq!((packets, rest), (expected.into(), &[][..]));
    }

    #[test]
    fn a_length_that_is_too_large_is_damage_before_there_are_so_many_bytes() {
        let mut head = Vec::new();
        u32(&mut head, u32::MAX);
        u32(&mut head, 0);
        assert_eq!(read(&head, 1 << 20), Err(Damaged));
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_found(at in any::<prop::sample::Index>(), change in 1u8..) {
            let good = all();
            let mut bad = good.clone();
            let at = at.index(bad.len());
            bad[at] ^= change;
            let mut offset = 0;
            while let Ok(Some((packet, len))) = read(&bad[offset..], 100) {
                prop_assert_eq!(Ok(Some((packet, len))), read(&good[offset..], 100));
                offset += len;
            }
            prop_assert!(offset <= at);
        }

        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes, 100);
            let _ = read_body(&bytes);
        }
    }
}
