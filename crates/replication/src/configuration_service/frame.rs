//! Format of versions before 1.0: the bytes in which a decision stands in the configuration service's log.
//!
//! The configuration service's log began as a log of batches, in which a decision was the one transaction of a procedure
//! (number 1, `ordain.decree`) that nobody could call. Data directories hold such logs, so the bytes stay: those of a
//! batch of one chunk of one transaction whose one argument is the decision. All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | number of the decision |
//! | 8, 1, 1, 4 | time, partition, choice, layout: 0 |
//! | 4, 4 | transactions and chunks: 1 |
//! | 4, 4 | the chunk's place, 0, and length |
//! | 4, 8, 2 | its gateway, the one of no client; its number, that of the decision; its replica, 0 |
//! | 4, 4 | version of its map, and transactions left out: 0 |
//! | 4, 4 | length of the transaction after this word; its index, 0 |
//! | 2, 1, 1 | procedure, 1; database and flags: 0 |
//! | 4, 4 | number of arguments, 1; length of the argument |
//! | … | the decision |

use ordain_model::wire::{self, Codec as _, Reader};
use ordain_model::{Epoch, GatewayId};

/// Number of the procedure.
const PROCEDURE: u16 = 1;

/// Bytes of a transaction before its argument: length, index, procedure, database, flags, number and length of arguments.
const TRANSACTION: usize = 20;

/// A decision's bytes, framed.
pub(super) fn encode(number: Epoch, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + TRANSACTION + text.len());
    wire::u64(&mut out, number.0);
    wire::u64(&mut out, 0);
    wire::u8(&mut out, 0);
    wire::u8(&mut out, 0);
    [0, 1, 1, 0].iter().for_each(|word| wire::u32(&mut out, *word));
    wire::u32(&mut out, (TRANSACTION + text.len()) as u32);
    wire::u32(&mut out, GatewayId::HOUSE.0);
    wire::u64(&mut out, number.0);
    wire::u16(&mut out, 0);
    [0, 0].iter().for_each(|word| wire::u32(&mut out, *word));
    wire::u32(&mut out, (TRANSACTION - 4 + text.len()) as u32);
    wire::u32(&mut out, 0);
    wire::u16(&mut out, PROCEDURE);
    wire::u16(&mut out, 0);
    wire::u32(&mut out, 1);
    wire::bytes(&mut out, text);
    out
}

/// The number and the bytes of the decision that is framed so; `None` if the bytes are no such frame.
pub(super) fn decode(bytes: &[u8]) -> Option<(Epoch, &[u8])> {
    let number = Epoch::decode(&mut Reader::new(bytes))?;
    // The frame of a decision is a function of its number and length, so a frame is right if it is the one.
    let head = encode(number, &[]).len();
    let text = bytes.get(head..)?;
    (encode(number, text) == bytes).then_some((number, text))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::args::Args;
    use ordain_model::{
        Abort, Access, Batch, Call, Chunk, ChunkNo, Db, FragmentContext, Placed, PlanError, Planner,
        Procedure, ProcedureId, Registry,
    };
    use proptest::prelude::*;

    use super::*;

    /// The procedure of the versions before.
    struct FormerProcedure;

    impl Procedure for FormerProcedure {
        fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
            let text = args.iter().next().ok_or(PlanError::fixed("ERR an entry without a text"))?;
            planner.key_in(Db(0), 0, Access::Write, text)?;
            Ok(())
        }

        fn run(&self, _code: u16, _cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
            Ok(())
        }
    }

    /// The bytes that the versions before wrote.
    fn batch(number: Epoch, text: &[u8]) -> Vec<u8> {
        let mut registry = Registry::default();
        registry.register(ProcedureId(1), "ordain.decree", Arc::new(FormerProcedure));
        let mut chunk = Chunk::new(GatewayId::HOUSE, ChunkNo(number.0));
        chunk.push(&registry, Call::new(ProcedureId(1), Db(0)), |args| _ = args.push(text)).unwrap();
        let chunks = vec![Placed::whole(0, Arc::new(chunk))];
        Batch { epoch: number, total: 1, chunks, ..Batch::default() }.encode()
    }

    proptest! {
        #[test]
        fn the_bytes_are_those_of_the_versions_before(
            number in any::<u64>(),
            text in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes = encode(Epoch(number), &text);
            prop_assert_eq!(&bytes, &batch(Epoch(number), &text));
            prop_assert_eq!(decode(&bytes), Some((Epoch(number), &text[..])));
            for cut in 0..bytes.len() {
                prop_assert!(decode(&bytes[..cut]).is_none());
            }
        }

        #[test]
        fn any_bytes_are_a_frame_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = decode(&bytes);
        }
    }
}
