//! The cursor and the options of SCAN and HSCAN.

use ordain_model::ArgIter;

use crate::glob::Glob;
use crate::number::{parse_cursor, parse_i64};
use crate::shape::{NOT_INTEGER, Refusal, SYNTAX};

const BAD_CURSOR: Refusal = Refusal("ERR invalid cursor");

/// Most names that one step looks at: COUNT says about how many, and a step that looks at more holds up others.
const MAX_COUNT: usize = 10_000;

/// A step of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan<'a> {
    /// The cursor from which to go on; 0 at first.
    pub(crate) cursor: u64,
    /// About how many to look at, [`MAX_COUNT`] at most.
    pub(crate) count: usize,
    /// Only values of this type.
    pub(crate) type_name: Option<&'a [u8]>,
    pattern: Option<&'a [u8]>,
}

impl<'a> Scan<'a> {
    /// Reads the cursor.
    pub(crate) fn cursor(rest: &mut ArgIter<'_>) -> Result<u64, Refusal> {
        parse_cursor(rest.bytes()).ok_or(BAD_CURSOR)
    }

    /// Reads the cursor and what follows it. `typed` says whether TYPE is an option.
    pub(crate) fn parse(mut rest: ArgIter<'a>, typed: bool) -> Result<Scan<'a>, Refusal> {
        let cursor = Scan::cursor(&mut rest)?;
        let mut scan = Scan { cursor, count: 10, type_name: None, pattern: None };
        while let Some(option) = rest.next() {
            let value = rest.next().ok_or(SYNTAX)?.bytes;
            if option.bytes.eq_ignore_ascii_case(b"COUNT") {
                let count = parse_i64(value).ok_or(NOT_INTEGER)?;
                let count = usize::try_from(count).ok().filter(|n| *n > 0).ok_or(SYNTAX)?;
                scan.count = count.min(MAX_COUNT);
            } else if option.bytes.eq_ignore_ascii_case(b"MATCH") {
                Glob::check(value)?;
                scan.pattern = Some(value);
            } else if option.bytes.eq_ignore_ascii_case(b"TYPE") && typed {
                scan.type_name = Some(value);
            } else {
                return Err(SYNTAX);
            }
        }
        Ok(scan)
    }

    /// The filter of MATCH.
    pub(crate) fn filter(&self) -> Result<Filter, Refusal> {
        Ok(Filter(self.pattern.map(Glob::new).transpose()?))
    }
}

/// The pattern of a walk, ready to be matched.
#[derive(Debug)]
pub(crate) struct Filter(Option<Glob>);

impl Filter {
    /// True if a name is let through.
    pub(crate) fn wants(&self, name: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|glob| glob.matches(name))
    }
}
