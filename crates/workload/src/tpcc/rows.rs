//! The layout of the rows of the tables: their numbers at fixed places, little-endian, and then their texts, each
//! behind its length in two bytes. So a row is read in place and most changes write a few bytes at its front.
//!
//! Money is in cents, rates are in basis points, 0 stands for a null date or carrier.

use ordain_model::random::mix;

/// The length of the text that a stock has for each district.
pub const DIST_INFO_BYTES: usize = 24;

/// Declares a row: its numbers and its texts in their order, each column with what it is in the specification.
macro_rules! row {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? of $bytes:ty {
        $($number:ident: $int:ty = $number_doc:literal,)*
    } texts {
        $($text:ident = $text_doc:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $(#[doc = $number_doc] pub $number: $int,)*
            $(#[doc = $text_doc] pub $text: $bytes,)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// Reads a row; `None` for bytes that are none.
            #[inline]
            pub fn read(bytes: $bytes) -> Option<$name $(<$life>)?> {
                let (row, rest) = $name::split::<{ usize::MAX }>(bytes)?;
                rest.is_empty().then_some(row)
            }

            /// Reads the numbers of a row and the first `TEXTS` of its texts, and leaves the others empty: what is
            /// not asked for is not read, so that it need not be in the cache.
            #[inline]
            pub fn front<const TEXTS: usize>(bytes: $bytes) -> Option<$name $(<$life>)?> {
                Some($name::split::<TEXTS>(bytes)?.0)
            }

            #[inline]
            fn split<const TEXTS: usize>(bytes: $bytes) -> Option<($name $(<$life>)?, $bytes)> {
                const NAMES: &[&str] = &[$(stringify!($text)),*];
                let mut rest = bytes;
                $(
                    let (number, tail) = rest.split_first_chunk()?;
                    rest = tail;
                    let $number = <$int>::from_le_bytes(*number);
                )*
                let mut texts: [$bytes; NAMES.len()] = [&[]; NAMES.len()];
                for text in texts.iter_mut().take(TEXTS) {
                    let (len, tail) = rest.split_first_chunk()?;
                    (*text, rest) = tail.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
                }
                let [$($text),*] = texts;
                Some(($name { $($number,)* $($text,)* }, rest))
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
        ytd_cents: i64 = "W_YTD.",
        tax_bp: u16 = "W_TAX.",
    } texts {
        name = "W_NAME.",
        street_1 = "W_STREET_1.",
        street_2 = "W_STREET_2.",
        city = "W_CITY.",
        state = "W_STATE.",
        zip = "W_ZIP.",
    }
}

row! {
    /// A row of DISTRICT.
    District<'a> of &'a [u8] {
        ytd_cents: i64 = "D_YTD.",
        next_order: u32 = "D_NEXT_O_ID.",
        oldest_new_order: u32 =
            "The smallest NO_O_ID, or D_NEXT_O_ID if the district has no new order: no column of the \
             specification, but what an index on NEW-ORDER would begin with. New orders are contiguous (condition \
             3).",
        tax_bp: u16 = "D_TAX.",
    } texts {
        name = "D_NAME.",
        street_1 = "D_STREET_1.",
        street_2 = "D_STREET_2.",
        city = "D_CITY.",
        state = "D_STATE.",
        zip = "D_ZIP.",
    }
}

row! {
    /// A row of CUSTOMER.
    Customer<'a> of &'a [u8] {
        balance_cents: i64 = "C_BALANCE.",
        ytd_payment_cents: i64 = "C_YTD_PAYMENT.",
        payments: u32 = "C_PAYMENT_CNT.",
        deliveries: u32 = "C_DELIVERY_CNT.",
        credit_limit_cents: i64 = "C_CREDIT_LIM.",
        since_ms: u64 = "C_SINCE, milliseconds since the epoch.",
        discount_bp: u16 = "C_DISCOUNT.",
    } texts {
        first = "C_FIRST.",
        middle = "C_MIDDLE.",
        last = "C_LAST.",
        street_1 = "C_STREET_1.",
        street_2 = "C_STREET_2.",
        city = "C_CITY.",
        state = "C_STATE.",
        zip = "C_ZIP.",
        phone = "C_PHONE.",
        credit = "C_CREDIT: `GC` or `BC`.",
        data = "C_DATA.",
    }
}

row! {
    /// A row of HISTORY; the customer is the parent row.
    History<'a> of &'a [u8] {
        warehouse: u32 = "H_W_ID.",
        district: u8 = "H_D_ID.",
        at_ms: u64 = "H_DATE, milliseconds since the epoch.",
        amount_cents: i64 = "H_AMOUNT.",
    } texts {
        data = "H_DATA.",
    }
}

row! {
    /// A row of ORDER.
    Order of &[u8] {
        customer: u32 = "O_C_ID.",
        entered_ms: u64 = "O_ENTRY_D, milliseconds since the epoch.",
        carrier: u8 = "O_CARRIER_ID, 0 for null.",
        lines: u8 = "O_OL_CNT.",
        all_local: u8 = "O_ALL_LOCAL.",
    } texts {}
}

row! {
    /// A row of ORDER-LINE.
    OrderLine<'a> of &'a [u8] {
        item: u32 = "OL_I_ID.",
        supply_warehouse: u32 = "OL_SUPPLY_W_ID.",
        delivered_ms: u64 = "OL_DELIVERY_D, milliseconds since the epoch, 0 for null.",
        quantity: u8 = "OL_QUANTITY.",
        amount_cents: i64 = "OL_AMOUNT.",
    } texts {
        dist_info = "OL_DIST_INFO.",
    }
}

row! {
    /// A row of ITEM.
    Item<'a> of &'a [u8] {
        image: u32 = "I_IM_ID.",
        price_cents: i64 = "I_PRICE.",
    } texts {
        name = "I_NAME.",
        data = "I_DATA.",
    }
}

row! {
    /// A row of STOCK.
    Stock<'a> of &'a [u8] {
        quantity: i16 = "S_QUANTITY.",
        ytd: u32 = "S_YTD.",
        orders: u32 = "S_ORDER_CNT.",
        remote_orders: u32 = "S_REMOTE_CNT.",
    } texts {
        dist = "S_DIST_01 to S_DIST_10, one after the other.",
        data = "S_DATA.",
    }
}

impl<'a> Stock<'a> {
    /// S_QUANTITY as it is loaded, 10 to 100: drawn from the row's own texts, which never change. So an audit knows
    /// it without the seed, and with it, from S_YTD, what S_QUANTITY must be ever after.
    pub fn loaded_quantity(&self) -> i16 {
        let words = self.dist.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        10 + (words.fold(0, |hash, word| mix(hash ^ word)) % 91) as i16
    }

    /// The S_QUANTITY that must be after S_YTD: each order takes its quantity away, and refills by 91 where fewer than
    /// 10 would be left (clause 2.4.2.2).
    pub fn expected_quantity(&self) -> i16 {
        let left = i64::from(self.loaded_quantity()) - 10 - i64::from(self.ytd);
        10 + left.rem_euclid(91) as i16
    }

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
