//! The lines that a database server has in memory: the latest durable ones, and those that are not durable yet.

use std::collections::VecDeque;

use super::message::{Ballot, Line, Written};

/// Lines without a gap, up to the last.
#[derive(Debug)]
pub(super) struct Lines {
    /// The line before the first of these.
    base: Line,
    tail: VecDeque<Written>,
    bytes: usize,
}

impl Lines {
    /// No lines after one.
    pub fn after(base: Line) -> Lines {
        Lines { base, tail: VecDeque::new(), bytes: 0 }
    }

    /// The line before the first that is here.
    pub fn base(&self) -> Line {
        self.base
    }

    /// The last line.
    pub fn last(&self) -> Line {
        let ballot = self.tail.back().map_or(self.base.ballot, |line| line.ballot);
        Line { ballot, lsn: self.base.lsn + self.tail.len() as u64 }
    }

    /// Bytes, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a line behind the last and answers its number. `None` if its ballot is smaller than the last line's.
    pub fn push(&mut self, line: Written) -> Option<u64> {
        if line.ballot < self.last().ballot {
            return None;
        }
        self.bytes += line.content.size();
        self.tail.push_back(line);
        Some(self.last().lsn)
    }

    /// The line of this number, if it is here.
    pub fn get(&self, lsn: u64) -> Option<&Written> {
        self.tail.get(usize::try_from(lsn.checked_sub(self.base.lsn + 1)?).ok()?)
    }

    /// The ballot of a line that is here, or right before.
    pub fn at(&self, lsn: u64) -> Option<Line> {
        let ballot = if lsn == self.base.lsn { self.base.ballot } else { self.get(lsn)?.ballot };
        Some(Line { ballot, lsn })
    }

    /// The lines from a number on that a message takes, at least one if there is one. All before must be here or right before.
    pub fn some_from(&self, lsn: u64, most_bytes: usize) -> Vec<Written> {
        let mut left = most_bytes;
        let mut taken = Vec::new();
        let skip = lsn.saturating_sub(self.base.lsn + 1) as usize;
        for line in self.tail.range(skip.min(self.tail.len())..) {
            let size = line.content.size();
            if size > left && !taken.is_empty() {
                break;
            }
            left = left.saturating_sub(size);
            taken.push(line.clone());
        }
        taken
    }

    /// Forgets the lines after one.
    pub fn cut_after(&mut self, lsn: u64) {
        while self.last().lsn > lsn {
            let Some(line) = self.tail.pop_back() else { return };
            self.bytes -= line.content.size();
        }
    }

    /// Forgets the oldest lines up to one, until the others take no more than so many bytes.
    pub fn shrink(&mut self, lsn: u64, bytes: usize) {
        while self.bytes > bytes && self.base.lsn < lsn {
            let Some(line) = self.tail.pop_front() else { return };
            self.bytes -= line.content.size();
            self.base = Line { ballot: line.ballot, lsn: self.base.lsn + 1 };
        }
    }

    /// Checks the invariants of the fields.
    pub fn check(&self) -> Result<(), String> {
        let ballots: Vec<Ballot> =
            std::iter::once(self.base.ballot).chain(self.tail.iter().map(|line| line.ballot)).collect();
        let bytes: usize = self.tail.iter().map(|line| line.content.size()).sum();
        match ballots.is_sorted() && bytes == self.bytes {
            true => Ok(()),
            false => Err(format!("lines after {:?} are not in order: {ballots:?}", self.base)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Content;
    use super::*;

    fn line(ballot: u64) -> Written {
        Written { ballot: Ballot(ballot), content: Content::Begin }
    }

    #[test]
    fn lines_are_numbered_from_the_base_on() {
        let mut lines = Lines::after(Line { ballot: Ballot(3), lsn: 7 });
        assert_eq!((lines.push(line(3)), lines.push(line(5)), lines.push(line(4))), (Some(8), Some(9), None));
        assert_eq!(lines.last(), Line { ballot: Ballot(5), lsn: 9 });
        assert_eq!(lines.at(7), Some(lines.base()));
        assert_eq!((lines.at(6), lines.at(10), lines.get(7)), (None, None, None));
        assert_eq!(lines.some_from(8, 1), [line(3)]);
        assert_eq!(lines.some_from(8, 1000), [line(3), line(5)]);
        assert_eq!(lines.some_from(10, 1000), []);
        lines.check().unwrap();
    }

    #[test]
    fn the_oldest_go_first_and_none_that_is_not_to() {
        let mut lines = Lines::after(Line::default());
        (1..=5).for_each(|ballot| assert!(lines.push(line(ballot)).is_some()));
        lines.shrink(2, 0);
        assert_eq!((lines.base(), lines.bytes()), (Line { ballot: Ballot(2), lsn: 2 }, 3 * 64));
        lines.shrink(5, 2 * 64);
        assert_eq!(lines.base().lsn, 3);
        lines.cut_after(4);
        assert_eq!((lines.last(), lines.bytes()), (Line { ballot: Ballot(4), lsn: 4 }, 64));
        lines.check().unwrap();
    }
}
