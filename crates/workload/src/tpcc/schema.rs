//! The nine tables as records: how rows are named and laid out.
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
//! The rows that others cover ([`ordain_model::cover`]) are named by a suffix to the covering row's key:
//!
//! | table | below | suffix |
//! |---|---|---|
//! | ORDER | DISTRICT | `o`, O_ID 4 bytes |
//! | NEW-ORDER | DISTRICT | `n`, O_ID; the row is empty |
//! | ORDER-LINE | DISTRICT | `l`, O_ID, OL_NUMBER 1 byte |
//! | a customer's newest order | DISTRICT | `c`, C_ID 4 bytes; holds the O_ID |
//! | HISTORY | CUSTOMER | `h`, number 4 bytes: the customer's C_PAYMENT_CNT when it was made |
//!
//! All numbers are little-endian. **Rows** are their numbers at fixed places and then their texts, each behind its
//! length in two bytes. Money is in cents, rates are in basis points, 0 stands for a null date or carrier.

use ordain_model::key::{SLOTS, shard_of_slot};
use ordain_model::{Db, KeyHash};

use super::random::LAST_NAME_MAX;

/// Where the rows are.
pub const DB: Db = Db(0);
/// The most warehouses there can be.
pub const MAX_WAREHOUSES: u32 = 65_535;
/// The most districts that a warehouse can have: a stock has a text for each.
pub const MAX_DISTRICTS: u8 = 10;
/// The fewest and the most lines of an order.
pub const ORDER_LINES: (u32, u32) = (5, 15);
/// The length of the text that a stock has for each district.
pub const DIST_INFO_BYTES: usize = 24;

/// What the keys of all rows of one warehouse begin with: its hash tag in braces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    bytes: [u8; Prefix::MAX],
    len: u8,
}

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
        let mut prefix = Prefix { bytes: [0; Prefix::MAX], len: 0 };
        prefix.push(b'{');
        let digits = warehouse.checked_ilog10().unwrap_or(0);
        for place in (0..=digits).rev() {
            prefix.push(b'0' + (warehouse / 10u32.pow(place) % 10) as u8);
        }
        while letters > 0 {
            letters -= 1;
            prefix.push(b'a' + (letters % 26) as u8);
            letters /= 26;
        }
        prefix.push(b'}');
        prefix
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.len)] = byte;
        self.len += 1;
    }

    /// The hash tag, without its braces.
    pub fn tag(&self) -> &[u8] {
        &self.bytes[1..usize::from(self.len) - 1]
    }

    /// The prefix of a key; `None` if it has none.
    fn of(key: &[u8]) -> Option<Prefix> {
        let len = key.iter().take(Prefix::MAX).position(|byte| *byte == b'}')? + 1;
        let mut prefix = Prefix { bytes: [0; Prefix::MAX], len: len as u8 };
        prefix.bytes[..len].copy_from_slice(&key[..len]);
        Some(prefix)
    }

    /// The number of the warehouse; `None` if the prefix is none of ours.
    fn warehouse(&self) -> Option<u32> {
        let tag = self.bytes[..usize::from(self.len)].strip_prefix(b"{")?.strip_suffix(b"}")?;
        let digits = tag.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, letters) = tag.split_at(digits);
        let plain = letters.iter().all(u8::is_ascii_lowercase) && digits.first() != Some(&b'0');
        let number = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
        (plain && digits.len() <= 5 && (1..=MAX_WAREHOUSES).contains(&number)).then_some(number)
    }

    /// The key of a row of this warehouse.
    pub fn key(&self, row: Row<'_>) -> Key {
        let mut key = Key { bytes: [0; Key::MAX], len: 0 };
        key.push(&self.bytes[..usize::from(self.len)]);
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

/// Which row of a warehouse.
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

impl Row<'_> {
    /// C_ID, if it is a customer of this district.
    pub fn customer_of(self, district: u8) -> Option<u32> {
        match self {
            Row::Customer(of, customer) if of == district => Some(customer),
            _ => None,
        }
    }
}

/// What a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// What the keys of the warehouse begin with.
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
        let (table, rest) = key[usize::from(prefix.len)..].split_first()?;
        let number = |rest: &[u8]| rest.try_into().ok().map(u32::from_le_bytes);
        let row = match (table, rest) {
            (b'w', []) => Row::Warehouse,
            (b'd', [district]) => Row::District(*district),
            (b'c', [district, customer @ ..]) => Row::Customer(*district, number(customer)?),
            (b'n', [district, name @ ..]) if name.len() <= LAST_NAME_MAX => Row::Names(*district, name),
            (b'i', item) => Row::Item(number(item)?),
            (b's', item) => Row::Stock(number(item)?),
            _ => return None,
        };
        Some(Named { prefix, warehouse, row })
    }
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    bytes: [u8; Key::MAX],
    len: u8,
}

impl Key {
    const MAX: usize = Prefix::MAX + 2 + LAST_NAME_MAX;

    fn push(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// A row that another covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Covered {
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

impl Covered {
    /// The suffix, and how many bytes of it count.
    #[inline]
    pub fn suffix(self) -> Suffix {
        let (table, number, line) = match self {
            Covered::Order(order) => (b'o', order, None),
            Covered::NewOrder(order) => (b'n', order, None),
            Covered::OrderLine(order, line) => (b'l', order, Some(line)),
            Covered::Newest(customer) => (b'c', customer, None),
            Covered::History(payment) => (b'h', payment, None),
        };
        let n = number.to_le_bytes();
        let bytes = [table, n[0], n[1], n[2], n[3], line.unwrap_or(0)];
        Suffix { bytes, len: if line.is_some() { 6 } else { 5 } }
    }

    /// Reads a suffix; `None` if it is none of ours.
    pub fn read(suffix: &[u8]) -> Option<Covered> {
        let (table, rest) = suffix.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u32::from_le_bytes(*number);
        Some(match (table, rest) {
            (b'o', []) => Covered::Order(number),
            (b'n', []) => Covered::NewOrder(number),
            (b'l', [line]) => Covered::OrderLine(number, *line),
            (b'c', []) => Covered::Newest(number),
            (b'h', []) => Covered::History(number),
            _ => return None,
        })
    }
}

/// The name of a covered row below its cover.
#[derive(Clone, Copy, Debug)]
pub struct Suffix {
    bytes: [u8; 6],
    len: u8,
}

impl std::ops::Deref for Suffix {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

macro_rules! row {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? of $bytes:ty {
        $($(#[$number_doc:meta])* $number:ident: $int:ty,)*
    } texts {
        $($(#[$text_doc:meta])* $text:ident,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $($(#[$number_doc])* pub $number: $int,)*
            $($(#[$text_doc])* pub $text: $bytes,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// Reads a row; `None` for bytes that are none.
            #[inline]
            pub fn read(bytes: $bytes) -> Option<$name $(<$life>)?> {
                let mut rest = bytes;
                let row = $name {
                    $($number: {
                        let (number, tail) = rest.split_first_chunk()?;
                        rest = tail;
                        <$int>::from_le_bytes(*number)
                    },)*
                    $($text: {
                        let (len, tail) = rest.split_first_chunk()?;
                        let (text, tail) = tail.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
                        rest = tail;
                        text
                    },)*
                };
                rest.is_empty().then_some(row)
            }

            /// The numbers, as the row begins with them: to change a row in place.
            #[inline]
            pub fn numbers(&self) -> [u8; 0 $(+ size_of::<$int>())*] {
                let mut numbers = [0; 0 $(+ size_of::<$int>())*];
                let mut at = 0;
                $(
                    numbers[at..at + size_of::<$int>()].copy_from_slice(&self.$number.to_le_bytes());
                    at += size_of::<$int>();
                )*
                debug_assert_eq!(at, numbers.len());
                numbers
            }

            /// The whole row. A text is cut at 65,535 bytes.
            pub fn encode(&self) -> Vec<u8> {
                let texts: &[&[u8]] = &[$(self.$text,)*];
                let len = texts.iter().map(|text| 2 + text.len()).sum::<usize>();
                let numbers = self.numbers();
                let mut out = Vec::with_capacity(numbers.len() + len);
                out.extend_from_slice(&numbers);
                for text in texts {
                    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
                    out.extend_from_slice(&len.to_le_bytes());
                    out.extend_from_slice(&text[..usize::from(len)]);
                }
                out
            }
        }
    };
}

row! {
    /// A row of WAREHOUSE.
    Warehouse<'a> of &'a [u8] {
        /// W_YTD.
        ytd_cents: i64,
        /// W_TAX.
        tax_bp: u16,
    } texts {
        /// W_NAME.
        name,
        /// W_STREET_1.
        street_1,
        /// W_STREET_2.
        street_2,
        /// W_CITY.
        city,
        /// W_STATE.
        state,
        /// W_ZIP.
        zip,
    }
}

row! {
    /// A row of DISTRICT.
    District<'a> of &'a [u8] {
        /// D_YTD.
        ytd_cents: i64,
        /// D_NEXT_O_ID.
        next_order: u32,
        /// The smallest NO_O_ID, or D_NEXT_O_ID if the district has no new order: no column of the specification,
        /// but what an index on NEW-ORDER would begin with. New orders are contiguous (condition 3).
        oldest_new_order: u32,
        /// D_TAX.
        tax_bp: u16,
    } texts {
        /// D_NAME.
        name,
        /// D_STREET_1.
        street_1,
        /// D_STREET_2.
        street_2,
        /// D_CITY.
        city,
        /// D_STATE.
        state,
        /// D_ZIP.
        zip,
    }
}

row! {
    /// A row of CUSTOMER.
    Customer<'a> of &'a [u8] {
        /// C_BALANCE.
        balance_cents: i64,
        /// C_YTD_PAYMENT.
        ytd_payment_cents: i64,
        /// C_PAYMENT_CNT.
        payments: u32,
        /// C_DELIVERY_CNT.
        deliveries: u32,
        /// C_CREDIT_LIM.
        credit_limit_cents: i64,
        /// C_SINCE, milliseconds since the epoch.
        since_ms: u64,
        /// C_DISCOUNT.
        discount_bp: u16,
    } texts {
        /// C_FIRST.
        first,
        /// C_MIDDLE.
        middle,
        /// C_LAST.
        last,
        /// C_STREET_1.
        street_1,
        /// C_STREET_2.
        street_2,
        /// C_CITY.
        city,
        /// C_STATE.
        state,
        /// C_ZIP.
        zip,
        /// C_PHONE.
        phone,
        /// C_CREDIT: `GC` or `BC`.
        credit,
        /// C_DATA.
        data,
    }
}

row! {
    /// A row of HISTORY; the customer is the covering row.
    History<'a> of &'a [u8] {
        /// H_W_ID.
        warehouse: u32,
        /// H_D_ID.
        district: u8,
        /// H_DATE, milliseconds since the epoch.
        at_ms: u64,
        /// H_AMOUNT.
        amount_cents: i64,
    } texts {
        /// H_DATA.
        data,
    }
}

row! {
    /// A row of ORDER.
    Order of &[u8] {
        /// O_C_ID.
        customer: u32,
        /// O_ENTRY_D, milliseconds since the epoch.
        entered_ms: u64,
        /// O_CARRIER_ID, 0 for null.
        carrier: u8,
        /// O_OL_CNT.
        lines: u8,
        /// O_ALL_LOCAL.
        all_local: u8,
    } texts {}
}

row! {
    /// A row of ORDER-LINE.
    OrderLine<'a> of &'a [u8] {
        /// OL_I_ID.
        item: u32,
        /// OL_SUPPLY_W_ID.
        supply_warehouse: u32,
        /// OL_DELIVERY_D, milliseconds since the epoch, 0 for null.
        delivered_ms: u64,
        /// OL_QUANTITY.
        quantity: u8,
        /// OL_AMOUNT.
        amount_cents: i64,
    } texts {
        /// OL_DIST_INFO.
        dist_info,
    }
}

row! {
    /// A row of ITEM.
    Item<'a> of &'a [u8] {
        /// I_IM_ID.
        image: u32,
        /// I_PRICE.
        price_cents: i64,
    } texts {
        /// I_NAME.
        name,
        /// I_DATA.
        data,
    }
}

row! {
    /// A row of STOCK.
    Stock<'a> of &'a [u8] {
        /// S_QUANTITY.
        quantity: i16,
        /// S_YTD.
        ytd: u32,
        /// S_ORDER_CNT.
        orders: u32,
        /// S_REMOTE_CNT.
        remote_orders: u32,
    } texts {
        /// S_DIST_01 to S_DIST_10, one after the other.
        dist,
        /// S_DATA.
        data,
    }
}

impl<'a> Stock<'a> {
    /// S_DIST_xx of a district; empty if there is none.
    pub fn dist_info(&self, district: u8) -> &'a [u8] {
        let at = usize::from(district).wrapping_sub(1).wrapping_mul(DIST_INFO_BYTES);
        self.dist.get(at..at.saturating_add(DIST_INFO_BYTES)).unwrap_or_default()
    }
}

/// Reads the C_IDs of a record of customers by last name, in the order of C_FIRST.
pub fn customers_of_name(record: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    record.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            Covered::Order(3_001),
            Covered::NewOrder(3_001),
            Covered::OrderLine(3_001, 15),
            Covered::Newest(3_001),
            Covered::History(3_001),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for covered in all {
            let suffix = covered.suffix();
            assert_eq!(Covered::read(&suffix), Some(covered));
            assert!(seen.insert(suffix.to_vec()));
            assert_eq!(Covered::read(&suffix[..suffix.len() - 1]).filter(|c| *c == covered), None);
        }
        assert_eq!(Covered::read(b"x\0\0\0\0"), None);
    }

    fn any_text(max: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), 0..max)
    }

    proptest! {
        #[test]
        fn rows_are_read_back_and_every_truncation_is_refused(
            n in any::<(i64, i64, u32, u32, i64, u64, u16)>(),
            m in any::<(u8, u8, i16)>(),
            texts in proptest::collection::vec(any_text(40), 11),
            data in any_text(500),
        ) {
            let t: Vec<&[u8]> = texts.iter().map(|text| &**text).collect();
            macro_rules! check {
                ($name:ident { $($field:ident: $value:expr),* $(,)? }) => {{
                    let row = $name { $($field: $value),* };
                    let bytes = row.encode();
                    prop_assert_eq!($name::read(&bytes), Some(row));
                    prop_assert!(bytes.starts_with(&row.numbers()));
                    for cut in 0..bytes.len() {
                        prop_assert_eq!($name::read(&bytes[..cut]), None);
                    }
                    let longer = [&bytes[..], &[0]].concat();
                    prop_assert_eq!($name::read(&longer), None);
                }};
            }
            check!(Warehouse {
                ytd_cents: n.0, tax_bp: n.6, name: t[0], street_1: t[1], street_2: t[2], city: t[3], state: t[4],
                zip: t[5],
            });
            check!(District {
                ytd_cents: n.0, next_order: n.2, oldest_new_order: n.3, tax_bp: n.6, name: t[0], street_1: t[1],
                street_2: t[2], city: t[3], state: t[4], zip: t[5],
            });
            check!(Customer {
                balance_cents: n.0, ytd_payment_cents: n.1, payments: n.2, deliveries: n.3,
                credit_limit_cents: n.4, since_ms: n.5, discount_bp: n.6, first: t[0], middle: t[1], last: t[2],
                street_1: t[3], street_2: t[4], city: t[5], state: t[6], zip: t[7], phone: t[8], credit: t[9],
                data: &data,
            });
            check!(History { warehouse: n.2, district: m.0, at_ms: n.5, amount_cents: n.0, data: t[0] });
            check!(Order { customer: n.2, entered_ms: n.5, carrier: m.0, lines: m.1, all_local: m.0 });
            check!(OrderLine {
                item: n.2, supply_warehouse: n.3, delivered_ms: n.5, quantity: m.0, amount_cents: n.0,
                dist_info: t[0],
            });
            check!(Item { image: n.2, price_cents: n.0, name: t[0], data: &data });
            check!(Stock {
                quantity: m.2, ytd: n.2, orders: n.3, remote_orders: n.2, dist: &data, data: t[0],
            });
        }
    }

    #[test]
    fn the_texts_of_districts_are_parts_of_the_stocks() {
        let dist: Vec<u8> = (0..=239).collect();
        let stock = Stock { dist: &dist, ..Stock::default() };
        assert_eq!(stock.dist_info(1), &dist[..24]);
        assert_eq!(stock.dist_info(10), &dist[216..]);
        assert_eq!(stock.dist_info(11), b"");
        assert_eq!(stock.dist_info(0), b"");
    }
}
