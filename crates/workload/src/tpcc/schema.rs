//! The nine tables as records: how their rows are named.
//!
//! **Keys.** All rows of a warehouse share a hash tag, the decimal number of the warehouse and a few letters, so
//! that they share a slot and with it a shard. After the tag, in braces, comes a letter for the table and the rest
//! of the primary key:
//!
//! | table | key after the tag | |
//! |---|---|---|
//! | WAREHOUSE | `w` | |
//! | DISTRICT | `d`, D_ID 1 byte | covers ORDER, NEW-ORDER, ORDER-LINE |
//! | CUSTOMER | `c`, D_ID, C_ID 4 bytes | covers HISTORY |
//! | customers by last name | `n`, D_ID, C_LAST | C_IDs of 4 bytes, by C_FIRST; never changes |
//! | ITEM | `i`, I_ID 4 bytes | a copy in each warehouse, as the papers' systems replicate it; never changes |
//! | STOCK | `s`, I_ID 4 bytes | |
//!
//! The rows that others parent ([`ordain_model::children`]) are named by a suffix to the parent row's key:
//!
//! | table | below | suffix |
//! |---|---|---|
//! | ORDER | DISTRICT | `o`, O_ID 4 bytes |
//! | NEW-ORDER | DISTRICT | `n`, O_ID; the row is empty |
//! | ORDER-LINE | DISTRICT | `l`, O_ID, OL_NUMBER 1 byte |
//! | a customer's newest order | DISTRICT | `c`, C_ID 4 bytes; holds the O_ID |
//! | HISTORY | CUSTOMER | `h`, number 4 bytes: the customer's C_PAYMENT_CNT when it was made |
//!
//! All numbers are little-endian. What the rows hold is laid out in [`rows`](super::rows).

use ordain_model::key::{SLOTS, shard_of_slot};
use ordain_model::{Db, KeyHash};

use super::random::LAST_NAME_MAX;
use crate::packed::Short;

/// The database of the rows.
pub const DB: Db = Db(0);
/// The most warehouses there can be.
pub const MAX_WAREHOUSES: u32 = 65_535;
/// The most districts that a warehouse can have: a stock has a text for each.
pub const MAX_DISTRICTS: u8 = 10;
/// The fewest and the most lines of an order.
pub const ORDER_LINES: (u32, u32) = (5, 15);

/// The prefix of the keys of all rows of one warehouse: its hash tag in braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix(Short<{ Prefix::MAX }>);

impl Prefix {
    /// Braces, the digits of the largest number, and the letters that the search may need.
    const MAX: usize = 2 + 5 + 6;

    /// The prefix of a warehouse, such that the warehouse lies in partition `warehouse % partitions`, and those of
    /// one partition are spread evenly over its slots, so that they are over its shards too.
    ///
    /// The k-th warehouse of a partition aims at the k-th number of van der Corput's sequence (0, 1/2, 1/4, 3/4,
    /// 1/8, …), as a share of the partition's slots: evenly spread however many warehouses there will be. The
    /// letters are the first, in a fixed order, whose slot is there or a little above.
    pub fn new(warehouse: u32, partitions: usize) -> Prefix {
        let partitions = partitions.clamp(1, SLOTS);
        let partition = warehouse as usize % partitions;
        let mut slots = (0..SLOTS).filter(|slot| shard_of_slot(*slot, partitions) == partition);
        let first = slots.next().unwrap_or(0);
        let count = 1 + slots.count();
        let nth = (warehouse as usize / partitions) as u32;
        let aim = first + ((u64::from(nth.reverse_bits()) * count as u64) >> 32) as usize;
        let near = aim..aim + (count / 64).max(1);
        (0..)
            .map(|letters| Prefix::with_letters(warehouse, letters))
            .find(|prefix| near.contains(&KeyHash::of(prefix.tag()).slot()))
            .expect("some of a hundred million texts has a given slot of a thousand")
    }

    /// The tag of a warehouse with the `letters`-th suffix: nothing, a … z, aa, ba …
    fn with_letters(warehouse: u32, mut letters: u32) -> Prefix {
        let mut prefix = Short::EMPTY;
        prefix.push(b"{");
        let digits = warehouse.checked_ilog10().unwrap_or(0);
        for place in (0..=digits).rev() {
            prefix.push(&[b'0' + (warehouse / 10u32.pow(place) % 10) as u8]);
        }
        while letters > 0 {
            letters -= 1;
            prefix.push(&[b'a' + (letters % 26) as u8]);
            letters /= 26;
        }
        prefix.push(b"}");
        Prefix(prefix)
    }

    /// The hash tag, without its braces.
    pub fn tag(&self) -> &[u8] {
        &self.0[1..self.0.len() - 1]
    }

    /// The prefix of a key; `None` if it has none.
    fn of(key: &[u8]) -> Option<Prefix> {
        let len = key.iter().take(Prefix::MAX).position(|byte| *byte == b'}')? + 1;
        let mut prefix = Short::EMPTY;
        prefix.push(&key[..len]);
        Some(Prefix(prefix))
    }

    /// The number of the warehouse; `None` if the prefix is none of ours.
    fn warehouse(&self) -> Option<u32> {
        let tag = self.0.strip_prefix(b"{")?.strip_suffix(b"}")?;
        let digits = tag.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, letters) = tag.split_at(digits);
        let plain = letters.iter().all(u8::is_ascii_lowercase) && digits.first() != Some(&b'0');
        let number = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        (plain && digits.len() <= 5 && (1..=MAX_WAREHOUSES).contains(&number)).then_some(number)
    }

    /// The row of this warehouse that a key names; `None` if it is none of ours, or of another warehouse. That is
    /// less work than to [read](Named::read) the key.
    #[inline]
    pub fn row<'a>(&self, key: &'a [u8]) -> Option<Row<'a>> {
        let (prefix, rest) = key.split_at_checked(self.0.len())?;
        // Byte by byte: they are a few, and a call costs more than that.
        let is_ours = prefix.iter().zip(&*self.0).all(|(a, b)| a == b);
        if is_ours { Row::read(rest) } else { None }
    }

    /// The key of a row of this warehouse.
    pub fn key(&self, row: Row<'_>) -> Key {
        let mut key = Key::EMPTY;
        key.push(&self.0);
        match row {
            Row::Warehouse => key.push(b"w"),
            Row::District(district) => key.push(&[b'd', district]),
            Row::Customer(district, customer) => {
                key.push(&[b'c', district]);
                key.push(&customer.to_le_bytes());
            }
            Row::Names(district, name) => {
                key.push(&[b'n', district]);
                key.push(&name[..name.len().min(LAST_NAME_MAX)]);
            }
            Row::Item(item) => {
                key.push(b"i");
                key.push(&item.to_le_bytes());
            }
            Row::Stock(item) => {
                key.push(b"s");
                key.push(&item.to_le_bytes());
            }
        }
        key
    }
}

/// A row of a warehouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row<'a> {
    /// The WAREHOUSE row.
    Warehouse,
    /// A DISTRICT, by D_ID.
    District(u8),
    /// A CUSTOMER, by D_ID and C_ID.
    Customer(u8, u32),
    /// The customers of a district by their C_LAST.
    Names(u8, &'a [u8]),
    /// An ITEM, by I_ID.
    Item(u32),
    /// A STOCK, by I_ID.
    Stock(u32),
}

impl<'a> Row<'a> {
    /// Reads what stands behind the prefix of a key.
    #[inline]
    fn read(rest: &'a [u8]) -> Option<Row<'a>> {
        let (table, rest) = rest.split_first()?;
        let number = |rest: &[u8]| rest.try_into().ok().map(u32::from_le_bytes);
        Some(match (table, rest) {
            (b'w', []) => Row::Warehouse,
            (b'd', [district]) => Row::District(*district),
            (b'c', [district, customer @ ..]) => Row::Customer(*district, number(customer)?),
            (b'n', [district, name @ ..]) if name.len() <= LAST_NAME_MAX => Row::Names(*district, name),
            (b'i', item) => Row::Item(number(item)?),
            (b's', item) => Row::Stock(number(item)?),
            _ => return None,
        })
    }

    /// C_ID, if it is a customer of this district.
    pub fn customer_of(self, district: u8) -> Option<u32> {
        match self {
            Row::Customer(of, customer) if of == district => Some(customer),
            _ => None,
        }
    }
}

/// The row that a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The prefix of the keys of the warehouse.
    pub prefix: Prefix,
    /// The number of the warehouse.
    pub warehouse: u32,
    /// The row of the warehouse.
    pub row: Row<'a>,
}

impl<'a> Named<'a> {
    /// Reads a key; `None` if it is none of ours.
    pub fn read(key: &'a [u8]) -> Option<Named<'a>> {
        let prefix = Prefix::of(key)?;
        let warehouse = prefix.warehouse()?;
        Some(Named { prefix, warehouse, row: Row::read(&key[prefix.0.len()..])? })
    }

    /// Reads another key, which most often is of the same warehouse.
    #[inline]
    pub fn beside<'k>(&self, key: &'k [u8]) -> Option<Named<'k>> {
        match self.prefix.row(key) {
            Some(row) => Some(Named { row, ..*self }),
            None => Named::read(key),
        }
    }
}

/// A key: a prefix, and at most a letter, a D_ID and a last name behind it.
pub type Key = Short<{ Prefix::MAX + 2 + LAST_NAME_MAX }>;

/// A row that another covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Child {
    /// An ORDER of a district, by O_ID.
    Order(u32),
    /// A NEW-ORDER of a district, by NO_O_ID.
    NewOrder(u32),
    /// An ORDER-LINE of a district, by OL_O_ID and OL_NUMBER.
    OrderLine(u32, u8),
    /// The newest order of a customer of a district, by C_ID.
    Newest(u32),
    /// A HISTORY row of a customer, by its number.
    History(u32),
}

impl Child {
    /// The suffix to the parent's key.
    #[inline]
    pub fn suffix(self) -> Suffix {
        let (table, number, line) = match self {
            Child::Order(order) => (b'o', order, None),
            Child::NewOrder(order) => (b'n', order, None),
            Child::OrderLine(order, line) => (b'l', order, Some(line)),
            Child::Newest(customer) => (b'c', customer, None),
            Child::History(payment) => (b'h', payment, None),
        };
        let n = number.to_le_bytes();
        let bytes = [table, n[0], n[1], n[2], n[3], line.unwrap_or(0)];
        Suffix::front(bytes, if line.is_some() { 6 } else { 5 })
    }

    /// Reads a suffix; `None` if it is none of ours.
    pub fn read(suffix: &[u8]) -> Option<Child> {
        let (table, rest) = suffix.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u32::from_le_bytes(*number);
        Some(match (table, rest) {
            (b'o', []) => Child::Order(number),
            (b'n', []) => Child::NewOrder(number),
            (b'l', [line]) => Child::OrderLine(number, *line),
            (b'c', []) => Child::Newest(number),
            (b'h', []) => Child::History(number),
            _ => return None,
        })
    }
}

/// The name of a child row below its parent.
pub type Suffix = Short<6>;

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(prefix: &Prefix) -> Vec<Key> {
        let rows = [
            Row::Warehouse,
            Row::District(7),
            Row::Customer(b'{', u32::from_le_bytes(*b"{}{}")),
            Row::Customer(7, 12),
            Row::Names(7, b"BAROUGHTABLE"),
            Row::Item(12),
            Row::Stock(12),
        ];
        rows.iter().map(|row| prefix.key(*row)).collect()
    }

    #[test]
    fn rows_of_a_warehouse_share_its_slot_and_their_keys_are_read_back() {
        let mut seen = std::collections::BTreeSet::new();
        for warehouse in [1, 2, 9, 10, 11, 40, 65_535] {
            let prefix = Prefix::new(warehouse, 3);
            let slot = KeyHash::of(prefix.tag()).slot();
            for key in rows(&prefix) {
                assert_eq!(KeyHash::of(&key).slot(), slot);
                let named = Named::read(&key).unwrap();
                assert_eq!((named.warehouse, named.prefix), (warehouse, prefix));
                assert_eq!(named.prefix.key(named.row), key);
                assert_eq!((prefix.row(&key), named.beside(&key)), (Some(named.row), Some(named)));
                let other = Named::read(b"{7}w").unwrap();
                assert_eq!((other.prefix.row(&key), other.beside(&key)), (None, Some(named)));
                assert!(key.len() <= 12 + LAST_NAME_MAX && seen.insert(key.to_vec()));
            }
        }
        for no_key in [
            &b""[..],
            b"{1}",
            b"{1}x",
            b"{1}w ",
            b"{1}d",
            b"{}w",
            b"{0}w",
            b"{01}w",
            b"{65536}w",
            b"{a}w",
            b"{1A}w",
            b"1w",
            b"x{1}w",
            b"{1}s\0\0\0",
            b"{1}nxABLEABLEABLEABLE",
            b"{123456789012345}w",
        ] {
            assert_eq!(Named::read(no_key), None, "{no_key:?}");
        }
    }

    #[test]
    fn warehouses_lie_in_their_partitions_and_spread_over_shards() {
        for partitions in [1, 2, 3, 5, 16, SLOTS] {
            for warehouse in 1..=64 {
                let slot = KeyHash::of(Prefix::new(warehouse, partitions).tag()).slot();
                assert_eq!(shard_of_slot(slot, partitions), warehouse as usize % partitions);
            }
        }
        for (warehouses, shards) in [(2, 2), (4, 2), (4, 4), (8, 4), (10, 2), (64, 8)] {
            let mut counts = vec![0; shards];
            for warehouse in 1..=warehouses {
                let slot = KeyHash::of(Prefix::new(warehouse, 1).tag()).slot();
                counts[shard_of_slot(slot, shards)] += 1;
            }
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{warehouses} warehouses on {shards} shards: {counts:?}");
        }
    }

    #[test]
    fn suffixes_are_read_back() {
        let all = [
            Child::Order(3_001),
            Child::NewOrder(3_001),
            Child::OrderLine(3_001, 15),
            Child::Newest(3_001),
            Child::History(3_001),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for child in all {
            let suffix = child.suffix();
            assert_eq!(Child::read(&suffix), Some(child));
            assert!(seen.insert(suffix.to_vec()));
            assert_eq!(Child::read(&suffix[..suffix.len() - 1]).filter(|c| *c == child), None);
        }
        assert_eq!(Child::read(b"x\0\0\0\0"), None);
    }
}
