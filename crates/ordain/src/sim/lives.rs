//! What nodes of a simulated cluster go through between their lives: disks that are lost, rebuilds, checkpoints that are damaged.
//! It is the same with every family.

use std::collections::BTreeSet;

use ordain_checkpoint::{Found, file_name, list};
use ordain_deterministic::assembly;
use ordain_family::NodeSettings;
use ordain_model::{Epoch, KeyHash};
use ordain_role::{Bytes, Directory, DiskError, DiskOp, NodeId, Rebuild};

/// See the module.
pub(super) struct Lives {
    /// The generation of each node.
    generations: Vec<u32>,
    /// The number of times that each node was rebuilt, and the rebuild that is still to be done.
    rebuilds: Vec<(u32, Option<Rebuild>)>,
    /// The seed that draws which checkpoints are damaged, if disks have faults.
    damages: Option<u64>,
    /// The checkpoint of each node that was damaged last.
    damaged: Vec<Epoch>,
    /// The place after which the log of each node begins that has begun one anew.
    begun: Vec<Epoch>,
}

impl Lives {
    /// Nodes in their first lives. `damages`: the seed that draws which of their checkpoints are damaged.
    pub(super) fn new(nodes: usize, damages: Option<u64>) -> Lives {
        let (generations, rebuilds) = (vec![0; nodes], vec![(0, None); nodes]);
        Lives { generations, rebuilds, damages, damaged: vec![Epoch(0); nodes], begun: vec![Epoch(0); nodes] }
    }

    /// The settings of a node as it is now, given those of all.
    pub(super) fn of(&self, node: NodeId, settings: &NodeSettings) -> NodeSettings {
        let generation = self.generations[usize::from(node.0)];
        let (rebuilds, _) = self.rebuilds[usize::from(node.0)];
        NodeSettings { node, generation, rebuilds, ..settings.clone() }
    }

    /// A node has lost its disk.
    pub(super) fn lose(&mut self, node: NodeId) {
        self.generations[usize::from(node.0)] += 1;
    }

    /// A node is to be rebuilt when it starts next.
    pub(super) fn rebuild(&mut self, node: NodeId, how: Rebuild) {
        let (times, pending) = &mut self.rebuilds[usize::from(node.0)];
        *times += 1;
        *pending = Some(how.and(*pending));
    }

    /// The nodes that are about to be rebuilt: what they hold is void.
    pub(super) fn pending(&self) -> BTreeSet<NodeId> {
        let rebuilds = (0..).map(NodeId).zip(&self.rebuilds);
        rebuilds.filter(|(_, (_, pending))| pending.is_some()).map(|(node, _)| node).collect()
    }

    /// Carries out the rebuild that a node starts with, if there is one. Of one that discards the log, answers the place up to which
    /// what that held is certain.
    pub(super) fn begin(
        &mut self,
        node: NodeId,
        disk: &mut dyn Directory,
    ) -> Result<Option<Epoch>, DiskError> {
        let (_, pending) = &mut self.rebuilds[usize::from(node.0)];
        let Some(how) = *pending else { return Ok(None) };
        assembly::discard(disk, how)?;
        *pending = None;
        if !how.without_log {
            return Ok(None);
        }
        // It may have held what was lost; but not where a checkpoint was sealed.
        let complete = list(disk)?.into_iter().filter(Found::is_complete);
        let certain = complete.map(|found| found.epoch).max().unwrap_or_default();
        self.begun[usize::from(node.0)] = certain;
        Ok(Some(certain))
    }

    /// While a node was down, the newest of its checkpoints may have been damaged, if it keeps an older one to fall back
    /// on, and has made another since that happened last: logs are trimmed behind as many as are kept. What is on the disk
    /// besides may be one that was removed, and whose removal was lost.
    pub(super) fn damage(
        &mut self,
        (node, incarnation): (NodeId, u32),
        kept: usize,
        disk: &mut dyn Directory,
    ) -> Result<(), DiskError> {
        let Some(seed) = self.damages.filter(|_| kept > 1) else { return Ok(()) };
        let complete: Vec<Found> = list(disk)?.into_iter().filter(Found::is_complete).collect();
        let [.., older, Found { epoch, bytes: Some(len), .. }] = &complete[..] else { return Ok(()) };
        // A node that began again without its log has none that goes back as far.
        if older.epoch < self.begun[usize::from(node.0)] {
            return Ok(());
        }
        let last = &mut self.damaged[usize::from(node.0)];
        let drawn = KeyHash::of(format!("{seed} {} {incarnation}", node.0).as_bytes()).0;
        if drawn.is_multiple_of(2) && *epoch > *last {
            *last = *epoch;
            // Not the version of the format: a file of another one is refused, not done without.
            let (file, offset) = (file_name(*epoch), 12 + (drawn >> 1) % (len - 12));
            let byte = disk.read(&file, offset, 1)?.first().map_or(0, |byte| byte ^ 1 << (drawn % 7));
            let data = vec![Bytes::from(vec![byte])];
            disk.apply(&DiskOp::Write { file: file.clone(), offset, data })?;
            disk.apply(&DiskOp::Sync { file })?;
        }
        Ok(())
    }

    /// True if a checkpoint of a node is the one that was damaged last.
    pub(super) fn is_damaged(&self, node: NodeId, place: Epoch) -> bool {
        self.damaged[usize::from(node.0)] == place
    }
}
