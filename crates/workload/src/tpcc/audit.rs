//! The audit of the rows: the specification's consistency conditions (clause 3.3.2), and that the tables have
//! grown by what was answered.
//!
//! One read-only transaction reads all rows. All rows of a warehouse are on one shard, so each shard joins its own
//! and checks what is within a warehouse: conditions 2 to 7 and 10 to 12. A payment is below its customer, and an
//! order line is where the order is, so what a warehouse has of others' is summed up by warehouse and district, and
//! checked when the shards' parts are together (in `check.rs`): conditions 1, 8 and 9, and the stocks.
//!
//! Condition 11 is the specification's for the loaded database (2,100 orders of each district are delivered); ours
//! is what it becomes as orders are delivered.

pub mod at_home;

use std::collections::BTreeMap;

use ordain_model::random::mix;
use ordain_model::{Cell, Position, ProcedureId, Registry, Table, split_child_key};

use super::payment;
use super::population::LOADED_MS;
use super::rows::{Customer, District, History, Item, Order, OrderLine, Stock, Warehouse};
use super::schema::{Child, DB, MAX_DISTRICTS, Named, Row};
use crate::aggregate::{Aggregate, sums, word};
use crate::audit::{self, Audited};

/// Reads all rows. No arguments. Answers an [`Audited`] with [`Rows`].
pub const AUDIT: ProcedureId = ProcedureId(1055);

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(AUDIT, "tpcc.audit", audit::procedure(Join::audit));
    registry.register_native(at_home::AUDIT_HOME, "tpcc.audit_home", at_home::procedure());
}

/// The violations of a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    /// The number of violations.
    pub times: u64,
    /// The first few cases.
    pub examples: Vec<String>,
}

impl Wrong {
    const EXAMPLES: usize = 3;
}

/// A row that is none, or that is not where it belongs.
pub(super) const DAMAGED: u8 = 0;
/// A stock that no sequence of orders leaves behind.
pub(super) const STOCK: u8 = 13;
/// A customer's newest order that is not its newest order.
pub(super) const NEWEST: u8 = 14;
/// An order that was not placed so: O_ALL_LOCAL, an OL_AMOUNT that is not the price of so many, an OL_DIST_INFO that is
/// not the stock's; or an item whose price is not the same everywhere.
pub(super) const PLACED: u8 = 15;
/// A customer whose payments or deliveries are other than the rows say, or whose bad credit does not show in C_DATA.
pub(super) const CUSTOMER: u8 = 16;

sums! {
    /// The numbers of rows, and the sums of some of their columns.
    pub struct Totals {
        /// WAREHOUSE rows.
        pub warehouses: u64,
        /// DISTRICT rows.
        pub districts: u64,
        /// CUSTOMER rows.
        pub customers: u64,
        /// Rows of customers by last name.
        pub names: u64,
        /// ITEM rows, all copies.
        pub items: u64,
        /// STOCK rows.
        pub stocks: u64,
        /// HISTORY rows.
        pub history: u64,
        /// ORDER rows.
        pub orders: u64,
        /// NEW-ORDER rows.
        pub new_orders: u64,
        /// ORDER-LINE rows of orders that were not loaded.
        pub new_lines: u64,
        /// The sum of C_DELIVERY_CNT.
        pub deliveries: u64,
    }
}

sums! {
    /// The payments of a district, or of a warehouse (district 0): by its own row, and by the rows of HISTORY.
    pub(super) struct Paid {
        pub(super) ytd_cents: i64,
        pub(super) history_cents: i64,
    }
}

sums! {
    /// The orders of a warehouse's stocks: by the stocks, or by the order lines.
    pub(super) struct Ordered {
        quantity: u64,
        lines: u64,
        remote: u64,
        /// The three item by item, as one number: each item counts with random factors of its own, so that what one item
        /// has too much and another too little does not even out.
        by_item: u64,
    }
}

impl Ordered {
    fn add(&mut self, item: u32, quantity: u64, lines: u64, remote: u64) {
        self.quantity += quantity;
        self.lines += lines;
        self.remote += remote;
        for (n, count) in (0..).zip([quantity, lines, remote]) {
            let factor = mix(u64::from(item) << 2 | n);
            self.by_item = self.by_item.wrapping_add(factor.wrapping_mul(count));
        }
    }
}

/// The findings about the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// The numbers of rows.
    pub totals: Totals,
    /// The violations within a warehouse, by the number of the condition.
    pub(super) wrong: BTreeMap<u8, Wrong>,
    pub(super) paid: BTreeMap<(u32, u8), Paid>,
    /// By warehouse: the stocks, the lines.
    pub(super) ordered: BTreeMap<u32, [Ordered; 2]>,
}

impl Rows {
    fn wrong(&mut self, condition: u8, example: impl FnOnce() -> String) {
        let wrong = self.wrong.entry(condition).or_default();
        wrong.times += 1;
        if wrong.examples.len() < Wrong::EXAMPLES {
            wrong.examples.push(example());
        }
    }

    pub(super) fn require(&mut self, condition: u8, holds: bool, example: impl FnOnce() -> String) {
        if !holds {
            self.wrong(condition, example);
        }
    }
}

impl Aggregate for Rows {
    fn merge(&mut self, other: Rows) {
        self.totals.merge(other.totals);
        for (condition, theirs) in other.wrong {
            let wrong = self.wrong.entry(condition).or_default();
            wrong.times += theirs.times;
            wrong.examples.extend(theirs.examples);
            wrong.examples.truncate(Wrong::EXAMPLES);
        }
        for (place, theirs) in other.paid {
            self.paid.entry(place).or_default().merge(theirs);
        }
        for (warehouse, theirs) in other.ordered {
            let sides = self.ordered.entry(warehouse).or_default();
            sides.iter_mut().zip(theirs).for_each(|(side, theirs)| side.merge(theirs));
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        fn word(n: u64, out: &mut Vec<u8>) {
            out.extend_from_slice(&n.to_le_bytes());
        }
        self.totals.encode(out);
        word(self.paid.len() as u64, out);
        for ((warehouse, district), paid) in &self.paid {
            word(u64::from(*warehouse) << 8 | u64::from(*district), out);
            paid.encode(out);
        }
        word(self.ordered.len() as u64, out);
        for (warehouse, sides) in &self.ordered {
            word(u64::from(*warehouse), out);
            sides.iter().for_each(|side| side.encode(out));
        }
        word(self.wrong.len() as u64, out);
        for (condition, wrong) in &self.wrong {
            word(u64::from(*condition), out);
            word(wrong.times, out);
            word(wrong.examples.len() as u64, out);
            for example in &wrong.examples {
                word(example.len() as u64, out);
                out.extend_from_slice(example.as_bytes());
            }
        }
    }

    fn decode_front(bytes: &mut &[u8]) -> Option<Rows> {
        let mut rows = Rows { totals: Totals::decode_front(bytes)?, ..Rows::default() };
        for _ in 0..word(bytes)? {
            let place = word(bytes)?;
            rows.paid.insert(((place >> 8) as u32, place as u8), Paid::decode_front(bytes)?);
        }
        for _ in 0..word(bytes)? {
            let warehouse = word(bytes)? as u32;
            let sides = [Ordered::decode_front(bytes)?, Ordered::decode_front(bytes)?];
            rows.ordered.insert(warehouse, sides);
        }
        for _ in 0..word(bytes)? {
            let condition = word(bytes)? as u8;
            let mut wrong = Wrong { times: word(bytes)?, examples: Vec::new() };
            for _ in 0..word(bytes)? {
                let len = usize::try_from(word(bytes)?).ok()?;
                let (text, rest) = bytes.split_at_checked(len)?;
                wrong.examples.push(String::from_utf8_lossy(text).into_owned());
                *bytes = rest;
            }
            rows.wrong.insert(condition, wrong);
        }
        Some(rows)
    }
}

/// The rows of one shard, as far as they are to be joined.
#[derive(Default)]
struct Join {
    rows: Rows,
    districts: BTreeMap<(u32, u8), (u32, u32)>,
    customers: BTreeMap<(u32, u8, u32), CustomerSums>,
    orders: BTreeMap<(u32, u8, u32), OrderSums>,
    newest: BTreeMap<(u32, u8, u32), u32>,
    /// I_PRICE.
    prices: BTreeMap<u32, i64>,
    /// Of each stock of this shard a hash of S_DIST_xx, by district.
    dist_infos: BTreeMap<(u32, u32), [u16; MAX_DISTRICTS as usize]>,
}

/// A hash of an S_DIST_xx.
fn hash_of(dist_info: &[u8]) -> u16 {
    let words = dist_info.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    words.fold(dist_info.len() as u64, |hash, word| mix(hash ^ word)) as u16
}

#[derive(Clone, Default)]
struct CustomerSums {
    payments: u32,
    deliveries: u32,
    /// The number of rows of HISTORY, and the newest: its number, H_W_ID, H_D_ID and H_AMOUNT.
    history: u32,
    last_paid: (u32, (u32, u8), i64),
    /// C_DATA, if the credit is bad.
    bad_credit: Option<Vec<u8>>,
    /// The number of orders that transactions have delivered.
    delivered: u32,
    balance_cents: i64,
    ytd_payment_cents: i64,
    history_cents: i64,
    delivered_cents: i64,
    newest: u32,
}

#[derive(Clone, Copy, Default)]
struct OrderSums {
    /// The ORDER row: customer, carrier, lines; nothing if there is none.
    row: Option<(u32, u8, u8)>,
    loaded: bool,
    all_local: bool,
    is_new: bool,
    /// A line comes from another warehouse.
    is_remote: bool,
    /// A line was delivered by a transaction.
    delivered: bool,
    lines: u32,
    undelivered_lines: u32,
    delivered_cents: i64,
}

impl CustomerSums {
    /// True if the counts are those of the rows, and the last payment is where it must be.
    fn counts_agree(&self, customer: (u32, u8, u32)) -> bool {
        let (number, at, amount_cents) = self.last_paid;
        let shows = self.bad_credit.as_ref().is_none_or(|data| {
            let mut noted = Vec::new();
            payment::note(customer, at, amount_cents, &mut noted);
            // The first payment is the one that was loaded.
            number <= 1 || data.starts_with(&noted)
        });
        shows && (self.payments, self.payments) == (self.history, number) && self.deliveries == self.delivered
    }
}

impl Join {
    fn add(&mut self, key: &[u8], cell: &Cell) {
        let (Some(named), Some(bytes)) = (Named::read(key), cell.string()) else {
            return self.rows.wrong(DAMAGED, || format!("a record {} that is no row", key.escape_ascii()));
        };
        if self.add_row(named, bytes).is_none() {
            self.rows.wrong(DAMAGED, || format!("{:?} of warehouse {}", named.row, named.warehouse));
        }
    }

    fn add_row(&mut self, named: Named<'_>, bytes: &[u8]) -> Option<()> {
        let (rows, warehouse) = (&mut self.rows, named.warehouse);
        match named.row {
            Row::Warehouse => {
                rows.totals.warehouses += 1;
                rows.paid.entry((warehouse, 0)).or_default().ytd_cents = Warehouse::read(bytes)?.ytd_cents;
            }
            Row::District(district) => {
                let row = District::read(bytes)?;
                rows.totals.districts += 1;
                rows.paid.entry((warehouse, district)).or_default().ytd_cents = row.ytd_cents;
                self.districts.insert((warehouse, district), (row.next_order, row.oldest_new_order));
            }
            Row::Customer(district, customer) => {
                let row = Customer::read(bytes)?;
                rows.totals.customers += 1;
                rows.totals.deliveries += u64::from(row.deliveries);
                let sums = self.customers.entry((warehouse, district, customer)).or_default();
                sums.balance_cents = row.balance_cents;
                sums.ytd_payment_cents = row.ytd_payment_cents;
                (sums.payments, sums.deliveries) = (row.payments, row.deliveries);
                sums.bad_credit = (row.credit == b"BC").then(|| row.data.to_vec());
            }
            Row::Names(..) => {
                rows.totals.names += 1;
                (!bytes.is_empty() && bytes.len().is_multiple_of(4)).then_some(())?;
            }
            Row::Item(item) => {
                rows.totals.items += 1;
                let price = Item::read(bytes)?.price_cents;
                let known = *self.prices.entry(item).or_insert(price);
                rows.require(PLACED, price == known, || {
                    format!("item {item} costs {price} in warehouse {warehouse} and {known} elsewhere")
                });
            }
            Row::Stock(item) => {
                let row = Stock::read(bytes)?;
                rows.totals.stocks += 1;
                let [stocks, _] = rows.ordered.entry(warehouse).or_default();
                let mut district = 0;
                let hashes = [(); MAX_DISTRICTS as usize].map(|()| {
                    district += 1;
                    hash_of(row.dist_info(district))
                });
                self.dist_infos.insert((warehouse, item), hashes);
                stocks.add(item, row.ytd.into(), row.orders.into(), row.remote_orders.into());
                let expected = row.expected_quantity();
                rows.require(STOCK, row.quantity == expected, || {
                    let Stock { quantity, ytd, .. } = row;
                    format!("S_QUANTITY {quantity} of item {item} in warehouse {warehouse}: {expected} after {ytd}")
                });
            }
        }
        Some(())
    }

    /// A child row, except those of ORDER-LINE.
    fn add_child(&mut self, parent: Named<'_>, child: Child, bytes: &[u8]) -> Option<()> {
        let (rows, warehouse) = (&mut self.rows, parent.warehouse);
        match (parent.row, child) {
            (Row::District(district), Child::Order(number)) => {
                let row = Order::read(bytes)?;
                rows.totals.orders += 1;
                let order = self.orders.entry((warehouse, district, number)).or_default();
                order.row = Some((row.customer, row.carrier, row.lines));
                order.loaded = row.entered_ms == LOADED_MS;
                order.all_local = row.all_local != 0;
            }
            (Row::District(district), Child::NewOrder(number)) => {
                rows.totals.new_orders += 1;
                self.orders.entry((warehouse, district, number)).or_default().is_new = true;
            }
            (Row::District(district), Child::Newest(customer)) => {
                let number = u32::from_le_bytes(bytes.try_into().ok()?);
                self.newest.insert((warehouse, district, customer), number);
            }
            (Row::Customer(district, customer), Child::History(number)) => {
                let row = History::read(bytes)?;
                rows.totals.history += 1;
                let paid = rows.paid.entry((row.warehouse, row.district)).or_default();
                paid.history_cents = paid.history_cents.wrapping_add(row.amount_cents);
                let sums = self.customers.entry((warehouse, district, customer)).or_default();
                sums.history_cents = sums.history_cents.wrapping_add(row.amount_cents);
                sums.history += 1;
                if number > sums.last_paid.0 {
                    sums.last_paid = (number, (row.warehouse, row.district), row.amount_cents);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// A row of ORDER-LINE, when all of ORDER are known.
    fn add_line(&mut self, parent: Named<'_>, number: u32, bytes: &[u8]) -> Option<()> {
        let Row::District(district) = parent.row else { return None };
        let row = OrderLine::read(bytes)?;
        let order = self.orders.entry((parent.warehouse, district, number)).or_default();
        order.lines += 1;
        if row.delivered_ms == 0 {
            order.undelivered_lines += 1;
        } else {
            order.delivered_cents = order.delivered_cents.wrapping_add(row.amount_cents);
            order.delivered |= row.delivered_ms != LOADED_MS;
        }
        let is_remote = row.supply_warehouse != parent.warehouse;
        order.is_remote |= is_remote;
        if !order.loaded {
            self.rows.totals.new_lines += 1;
            let [_, lines] = self.rows.ordered.entry(row.supply_warehouse).or_default();
            lines.add(row.item, row.quantity.into(), 1, is_remote.into());
            let amount = self.prices.get(&row.item).map(|price| price.wrapping_mul(row.quantity.into()));
            self.rows.require(PLACED, amount == Some(row.amount_cents), || {
                let OrderLine { item, quantity, amount_cents, .. } = row;
                format!("OL_AMOUNT {amount_cents} of {quantity} of item {item}, which cost {amount:?}")
            });
            // A stock of another shard is not at hand.
            let hashes = self.dist_infos.get(&(row.supply_warehouse, row.item));
            let hash = hashes.and_then(|hashes| hashes.get(usize::from(district).wrapping_sub(1)));
            self.rows.require(PLACED, hash.is_none_or(|hash| *hash == hash_of(row.dist_info)), || {
                let OrderLine { item, supply_warehouse, .. } = row;
                format!(
                    "OL_DIST_INFO of item {item} is not that of its stock in warehouse {supply_warehouse}"
                )
            });
        }
        Some(())
    }

    /// Audits the rows of a shard: ORDER-LINE in a scan of its own, when all other rows are known.
    fn audit(table: &dyn Table) -> Audited<Rows> {
        let (mut join, mut audited) = (Join::default(), Audited::<Rows>::default());
        table.scan(DB, Position::default(), &mut |_, key, cell| {
            audited.count(DB, key, cell);
            join.add(key, cell);
            true
        });
        for lines in [false, true] {
            table.scan(DB.children(), Position::default(), &mut |_, key, cell| {
                let parts = split_child_key(key)
                    .and_then(|(parent, suffix)| Some((Named::read(parent)?, Child::read(suffix)?)));
                let added = match (parts, cell.string()) {
                    (Some((parent, Child::OrderLine(number, _))), Some(bytes)) if lines => {
                        join.add_line(parent, number, bytes)
                    }
                    (Some((_, Child::OrderLine(..))), Some(_)) => Some(()),
                    _ if lines => Some(()),
                    (Some((parent, child)), Some(bytes)) => join.add_child(parent, child, bytes),
                    _ => None,
                };
                if !lines {
                    audited.count(DB.children(), key, cell);
                }
                if added.is_none() {
                    join.rows.wrong(DAMAGED, || format!("child record {}", key.escape_ascii()));
                }
                true
            });
        }
        audited.found = join.close();
        audited
    }

    /// Checks what is within a warehouse.
    fn close(mut self) -> Rows {
        let Join { rows, districts, customers, orders, newest, .. } = &mut self;
        for (&(w, d, o), order) in &*orders {
            let place = || format!("order {o} of district {d} of warehouse {w}");
            let Some((customer, carrier, lines)) = order.row else {
                rows.require(5, !order.is_new, || format!("NEW-ORDER without {}", place()));
                rows.require(6, order.lines == 0, || format!("{} lines without {}", order.lines, place()));
                continue;
            };
            rows.require(5, (carrier == 0) == order.is_new, || {
                let is = if order.is_new { "is" } else { "is not" };
                format!("{} has carrier {carrier} and {is} in NEW-ORDER", place())
            });
            rows.require(6, u32::from(lines) == order.lines, || {
                format!("{} has O_OL_CNT {lines} and {} lines", place(), order.lines)
            });
            let expected = if carrier == 0 { order.lines } else { 0 };
            rows.require(7, order.undelivered_lines == expected, || {
                let (n, of) = (order.undelivered_lines, order.lines);
                format!("{} has carrier {carrier} and {n} of {of} lines without a delivery date", place())
            });
            rows.require(PLACED, order.all_local != order.is_remote, || {
                format!("{} has O_ALL_LOCAL {} and is not so", place(), u8::from(order.all_local))
            });
            let sums = customers.entry((w, d, customer)).or_default();
            sums.delivered += u32::from(order.delivered);
            sums.delivered_cents = sums.delivered_cents.wrapping_add(order.delivered_cents);
            sums.newest = sums.newest.max(o);
        }
        for (&(w, d, c), sums) in &*customers {
            let CustomerSums { balance_cents, ytd_payment_cents, history_cents, delivered_cents, .. } = *sums;
            let place = || format!("customer {c} of district {d} of warehouse {w}");
            rows.require(CUSTOMER, sums.counts_agree((w, d, c)), || {
                let CustomerSums { payments, history, deliveries, delivered, .. } = *sums;
                format!(
                    "{} has C_PAYMENT_CNT {payments} of {history}, C_DELIVERY_CNT {deliveries} of {delivered}, or \
                     C_DATA does not show its last payment",
                    place()
                )
            });
            rows.require(10, balance_cents == delivered_cents.wrapping_sub(history_cents), || {
                let figures = format!("{delivered_cents} were delivered and {history_cents} paid");
                format!("{} has C_BALANCE {balance_cents} where {figures}", place())
            });
            rows.require(12, balance_cents.wrapping_add(ytd_payment_cents) == delivered_cents, || {
                let figures =
                    format!("C_YTD_PAYMENT {ytd_payment_cents} where {delivered_cents} were delivered");
                format!("{} has C_BALANCE {balance_cents} and {figures}", place())
            });
            let known = newest.remove(&(w, d, c)).unwrap_or(0);
            rows.require(NEWEST, known == sums.newest, || {
                format!("{} has newest order {}, not {known}", place(), sums.newest)
            });
        }
        for (&(w, d, c), order) in &*newest {
            rows.wrong(NEWEST, || {
                format!("order {order} of no customer {c} of district {d} of warehouse {w}")
            });
        }
        for (&(w, d), &(next_order, oldest)) in &*districts {
            check_district(rows, orders.range((w, d, 0)..=(w, d, u32::MAX)), (w, d), next_order, oldest);
        }
        self.rows
    }
}

/// Checks what the orders of a district amount to.
fn check_district<'o>(
    rows: &mut Rows,
    orders: impl Iterator<Item = (&'o (u32, u8, u32), &'o OrderSums)>,
    (w, d): (u32, u8),
    next_order: u32,
    oldest: u32,
) {
    let (mut count, mut delivered, mut last) = (0u32, 0u32, 0);
    let (mut new_orders, mut new_range) = (0u32, None);
    let (mut counted, mut lines) = (0u64, 0u64);
    for (&(_, _, number), order) in orders {
        lines += u64::from(order.lines);
        if let Some((_, carrier, of)) = order.row {
            count += 1;
            delivered += u32::from(carrier != 0);
            counted += u64::from(of);
            last = number;
        }
        if order.is_new {
            new_orders += 1;
            new_range = Some((new_range.map_or(number, |(first, _)| first), number));
        }
    }
    let place = || format!("district {d} of warehouse {w}");
    let newest_is_last = new_range.is_none_or(|(_, newest)| newest == last);
    rows.require(2, next_order.checked_sub(1) == Some(last) && newest_is_last, || {
        let newest = new_range.map_or(0, |(_, newest)| newest);
        format!("{} has D_NEXT_O_ID {next_order}, last order {last}, last new order {newest}", place())
    });
    let contiguous =
        new_range.is_none_or(|(first, newest)| newest - first + 1 == new_orders && oldest == first);
    rows.require(3, contiguous && (new_range.is_some() || oldest == next_order), || {
        format!("{} has {new_orders} new orders of {new_range:?}, the oldest {oldest} by its row", place())
    });
    rows.require(4, counted == lines, || {
        format!("{} has {lines} lines where O_OL_CNT adds up to {counted}", place())
    });
    rows.require(
        11,
        count - new_orders.min(count) == delivered && oldest.checked_sub(1) == Some(delivered),
        || {
            format!(
                "{} has {count} orders, {new_orders} new and {delivered} delivered, up to {oldest}",
                place()
            )
        },
    );
}
