//! Contents of the past that one was handed with their values.

use std::collections::BTreeMap;

use ordain_model::{Cell, FramePlace};

use super::PastValues;

/// Values of past states that one has, and the contents that were made with them.
#[derive(Clone, Debug, Default)]
pub struct Handed {
    values: PastValues,
    /// By the places of their values: several contents of one value differ by when they expire.
    contents: BTreeMap<FramePlace, Vec<Cell>>,
}

impl Handed {
    /// Adds values.
    pub fn extend(&mut self, values: PastValues) {
        self.values.extend(values);
    }

    /// Returns whether the value of a content is in memory or here; [`Handed::of`] has it for a content that was asked
    /// for so.
    pub fn has(&mut self, cell: &Cell) -> bool {
        let Some(evicted) = cell.evicted() else { return true };
        let Some(value) = self.values.get(evicted) else { return false };
        let contents = self.contents.entry(evicted.place()).or_default();
        if contents.iter().all(|other| other.expires_at != cell.expires_at) {
            contents.push(Cell { value: Some(value.clone()), expires_at: cell.expires_at });
        }
        true
    }

    /// The content with its value, if that is evicted and is here.
    #[inline]
    pub fn of<'a>(&'a self, cell: &'a Cell) -> &'a Cell {
        let Some(evicted) = cell.evicted() else { return cell };
        let contents = self.contents.get(&evicted.place()).map_or(&[][..], Vec::as_slice);
        contents.iter().find(|content| content.expires_at == cell.expires_at).unwrap_or(cell)
    }
}
