//! The checkpointers of a cluster's nodes, as far as a shard knows of them: they take its pieces, and a checkpoint is complete
//! once every shard of the replica has said that it has given all. A node that was killed begins from the newest one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ordain_checkpoint::{Encoder, Header, Item, Piece, file_name, read};
use ordain_deterministic::shard::Shard;
use ordain_log::MemoryDirectory;
use ordain_model::{Digest, Epoch, Layout};
use ordain_role::{Directory, DiskOp};
use ordain_store::MemoryStore;

/// What was given of one checkpoint.
#[derive(Default)]
struct Given {
    /// By shard.
    pieces: BTreeMap<usize, Vec<Piece>>,
    /// The shards that have given all.
    ended: BTreeSet<usize>,
}

/// All checkpoints.
#[derive(Default)]
pub struct Saved(BTreeMap<Epoch, Given>);

impl Saved {
    /// A shard gives a piece.
    pub fn take(&mut self, shard: usize, epoch: Epoch, piece: Piece) {
        self.0.entry(epoch).or_default().pieces.entry(shard).or_default().push(piece);
    }

    /// A shard has given all.
    pub fn end(&mut self, shard: usize, epoch: Epoch) {
        assert!(self.0.entry(epoch).or_default().ended.insert(shard), "twice");
    }

    /// Those that all shards have given all of, the oldest first.
    pub fn complete(&self, shards: usize) -> Vec<Epoch> {
        let complete = self.0.iter().filter(|(_, given)| given.ended.len() == shards);
        complete.map(|(epoch, _)| *epoch).collect()
    }

    /// What the records given for a checkpoint add up to.
    pub fn digest(&self, epoch: Epoch) -> Digest {
        let pieces = self.0.get(&epoch).into_iter().flat_map(|given| given.pieces.values().flatten());
        pieces.fold(Digest::default(), |sum, piece| sum.plus(piece.digest()))
    }

    /// The shards of a partition begin from a checkpoint, by way of its file.
    pub fn restore(
        &self,
        epoch: Epoch,
        layout: &Layout,
        mine: Range<usize>,
        shards: &mut [Shard<MemoryStore>],
    ) {
        let header = Header::new(b"", layout, layout.partition_of_shard(mine.start), epoch);
        let (mut encoder, head) = Encoder::begin(&header);
        let mut bytes = vec![head];
        let pieces = mine.clone().filter_map(|shard| self.0[&epoch].pieces.get(&shard)).flatten();
        pieces.for_each(|piece| bytes.extend(encoder.frame(piece.clone())));
        bytes.extend(encoder.end().0);
        let mut disk = MemoryDirectory::new();
        let file = file_name(epoch);
        disk.apply(&DiskOp::Create { file: file.clone(), len: 0 }).expect("a new file");
        disk.apply(&DiskOp::Write { file, offset: 0, data: bytes }).expect("it is written");
        let mut layout = layout.clone();
        let restored = read(&disk, &header, |item| {
            match item {
                Item::Map(map) => {
                    layout = layout.under(&map);
                    mine.clone().for_each(|shard| shards[shard].begin_under(&map));
                }
                Item::Record { db, key, cell, version } => {
                    let shard = layout.shard_of_key(db, key);
                    shards[shard].restore(db, key, cell, version);
                }
                Item::Outcome(outcome) => {
                    shards[layout.home_of(outcome.session)].restore_outcome(&outcome);
                }
                Item::Input(_) => return Err("of a sequencer".into()),
            }
            Ok(())
        });
        restored.expect("what was written");
        mine.for_each(|shard| shards[shard].begin_after(epoch));
    }
}
