//! TPC-C as transactions over records (TPC-C revision 5.11; calvin.md, sections 4.7, 4.8 and 7; qstore.md, section 7;
//! fwkv.md, section 7): nine tables, five transactions, twelve consistency conditions.
//!
//! - [`schema`], [`rows`]: how rows are named, and how they are laid out;
//! - [`population`], [`load`]: what to start from;
//! - [`new_order`], [`payment`], [`order_status`], [`delivery`], [`stock_level`]: the transactions;
//! - [`source`]: which of them come next, with which arguments;
//! - [`audit`]: what must hold of the rows.
//!
//! Keys that are not known before a transaction runs are found in two ways. Rows whose names hold a number that the
//! transaction draws (an order's) are child by the row that the number is in. Rows that others lead to (a customer
//! by name, the customers of the orders to be delivered, the items sold of late) are found by a reconnaissance that
//! the transaction checks (OLLP).
//!
//! Where we leave the specification: no terminals, so no keying and think times, and the home warehouse is drawn
//! uniformly for each transaction, as the papers do it; no deferred execution of Delivery; the mix is drawn at random,
//! transaction by transaction, not dealt from a deck of cards; ITEM has a copy in each warehouse; the answer of a
//! transaction is data, not a screen.

pub mod audit;
mod by_name;
mod check;
pub mod delivery;
pub mod load;
pub mod new_order;
pub mod order_status;
pub mod payment;
pub mod population;
pub mod random;
pub mod rows;
pub mod schema;
pub mod source;
pub mod stock_level;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ordain_model::args::Arg;
use ordain_model::key::SLOTS;
use ordain_model::procedure::Target;
use ordain_model::{Args, Children, FragmentContext, PlanError, ProcedureId, Registry, Value, system};

pub use population::Scale;

use crate::packed::damaged;
use crate::parameters::{ParameterError, parameters, require, require_in, require_share};
use crate::{Class, Finding, Param, Results, Source, Workload};
use population::MAX_ROWS;
use schema::{Child, MAX_DISTRICTS, MAX_WAREHOUSES, Prefix};

const DAMAGED: PlanError = damaged!("a TPC-C procedure");

pub(crate) fn register(registry: &mut Registry) {
    register_all(registry, false);
}

/// Registers the procedures with a mistake in them: now and then NewOrder does not update a stock. What finds it is
/// trusted to find the like of it.
pub fn register_with_planted_bug(registry: &mut Registry) {
    register_all(registry, true);
}

fn register_all(registry: &mut Registry, skip_stock_updates: bool) {
    load::register(registry);
    new_order::register(registry, skip_stock_updates);
    payment::register(registry);
    order_status::register(registry);
    delivery::register(registry);
    stock_level::register(registry);
    audit::register(registry);
}

/// The keys of a call, and the packed argument behind them.
fn split_packed(args: Args<'_>) -> Result<(impl Iterator<Item = Arg<'_>>, &[u8]), PlanError> {
    let keys = args.len().checked_sub(1).filter(|keys| *keys > 0).ok_or(DAMAGED)?;
    let packed = args.get(keys).ok_or(DAMAGED)?;
    Ok((args.iter().take(keys), packed))
}

/// The last argument, in which a fragment finds what is packed behind the keys; nothing if there is none.
fn last(args: Args<'_>) -> &[u8] {
    args.iter().last().map_or(&[], |packed| packed.bytes)
}

/// The bytes of the record that a fragment has; `None` if it is absent.
#[inline]
fn string<'a>(target: &'a Target<'_>) -> Option<&'a [u8]> {
    match target {
        Target::Read(cell) => cell.string(),
        Target::Write(cell) => cell.string(),
        Target::Table(_) | Target::Compute(_) => None,
    }
}

/// Changes the numbers that a fragment's row begins with.
#[inline]
fn write_numbers(cx: &mut FragmentContext<'_>, numbers: &[u8]) {
    cx.cell_mut().change_string(|row| overwrite(row, numbers));
}

fn overwrite(row: &mut [u8], numbers: &[u8]) {
    if let Some(front) = row.get_mut(..numbers.len()) {
        front.copy_from_slice(numbers);
    }
}

/// The bytes of a child row; `None` if it is absent.
#[inline]
fn child(rows: &dyn Children, child: Child) -> Option<&[u8]> {
    rows.read(&child.suffix()).string()
}

/// Puts a child row in its place.
fn put_child(cx: &mut FragmentContext<'_>, child: Child, row: Vec<u8>) {
    let mut row = Some(row);
    cx.children().edit(&child.suffix(), &mut |cell| {
        if let Some(row) = row.take() {
            cell.put(Value::String(row));
        }
    });
}

/// Changes the numbers that a child row begins with.
fn put_child_numbers(rows: &mut dyn Children, child: Child, numbers: &[u8]) {
    rows.edit(&child.suffix(), &mut |cell| cell.change_string(|row| overwrite(row, numbers)));
}

/// The transactions of each kind among a hundred, on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// NewOrder.
    pub new_order: f64,
    /// Payment.
    pub payment: f64,
    /// OrderStatus.
    pub order_status: f64,
    /// Delivery.
    pub delivery: f64,
    /// StockLevel.
    pub stock_level: f64,
}

impl Mix {
    /// The specification's (clause 5.2.3, with its minimum percentages).
    pub const FULL: Mix =
        Mix { new_order: 45.0, payment: 43.0, order_status: 4.0, delivery: 4.0, stock_level: 4.0 };
    /// NewOrder alone: the Calvin paper's, and one of the Q-Store paper's.
    pub const NEW_ORDER: Mix =
        Mix { new_order: 100.0, payment: 0.0, order_status: 0.0, delivery: 0.0, stock_level: 0.0 };
    /// Payment alone: another of the Q-Store paper's.
    pub const PAYMENT: Mix =
        Mix { new_order: 0.0, payment: 100.0, order_status: 0.0, delivery: 0.0, stock_level: 0.0 };
    /// NewOrder and Payment, half and half: the third of the Q-Store paper's.
    pub const HALVES: Mix =
        Mix { new_order: 50.0, payment: 50.0, order_status: 0.0, delivery: 0.0, stock_level: 0.0 };

    /// The FW-KV paper's: `percent` read-only transactions, OrderStatus and StockLevel half and half; the rest
    /// NewOrder, Payment and Delivery as 45 to 43 to 4.
    pub fn read_only(percent: f64) -> Mix {
        let part = (100.0 - percent) / 92.0;
        Mix {
            new_order: 45.0 * part,
            payment: 43.0 * part,
            order_status: percent / 2.0,
            delivery: 4.0 * part,
            stock_level: percent / 2.0,
        }
    }

    /// The percentages, in the order of the kinds.
    pub fn percents(&self) -> [f64; 5] {
        [self.new_order, self.payment, self.order_status, self.delivery, self.stock_level]
    }

    fn require_sound(&self) -> Result<(), ParameterError> {
        let percents = self.percents();
        let add_up = (percents.iter().sum::<f64>() - 100.0).abs() < 1e-6;
        require(percents.iter().all(|p| (0.0..=100.0).contains(p)) && add_up, || {
            format!("the percentages of a mix must be 0 to 100 and add up to 100, not {self}")
        })
    }
}

/// The five percentages, with at most two decimals.
impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, percent) in self.percents().iter().enumerate() {
            let separator = if i == 0 { "" } else { "/" };
            write!(f, "{separator}{}", (percent * 100.0).round() / 100.0)?;
        }
        Ok(())
    }
}

/// Reads `full`, `new-order`, `payment`, `halves`, `read-only:PERCENT`, or five percentages with `/` between them.
impl FromStr for Mix {
    type Err = ParameterError;

    fn from_str(text: &str) -> Result<Mix, ParameterError> {
        let by_percents = || {
            if let Some(percent) = text.strip_prefix("read-only:") {
                return Some(Mix::read_only(percent.parse().ok()?));
            }
            let percents = text.split('/').map(str::parse).collect::<Result<Vec<f64>, _>>().ok()?;
            let [new_order, payment, order_status, delivery, stock_level] = percents.try_into().ok()?;
            Some(Mix { new_order, payment, order_status, delivery, stock_level })
        };
        let mix = match text {
            "full" => Some(Mix::FULL),
            "new-order" => Some(Mix::NEW_ORDER),
            "payment" => Some(Mix::PAYMENT),
            "halves" => Some(Mix::HALVES),
            _ => by_percents(),
        };
        let mix = mix.ok_or_else(|| {
            ParameterError::new(format!(
                "a mix is full, new-order, payment, halves, read-only:PERCENT or five percentages as 45/43/4/4/4, not \
                 {text}"
            ))
        })?;
        mix.require_sound()?;
        Ok(mix)
    }
}

/// The share of transactions that use a second warehouse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Remote {
    /// As the specification has it: one order line in a hundred comes from another warehouse, 15 customers in a
    /// hundred pay in another.
    Standard,
    /// As the papers have it: this share of NewOrders has one line that comes from a second warehouse, and this share
    /// of Payments is a second warehouse's customer's. The second warehouse is in another partition if there is one.
    Share(f64),
}

parameters! {
    /// The database and the transactions.
    #[derive(Copy)]
    pub struct Parameters {
        /// The number of warehouses.
        pub warehouses: u32 = 1,
        /// The size of each.
        pub scale: Scale = Scale::default(),
        /// The number of partitions that they are spread over.
        pub partitions: usize = 1,
        /// The transactions.
        pub mix: Mix = Mix::FULL,
        /// Second warehouses.
        pub remote: Remote = Remote::Standard,
        /// True: partitions are regions. Clients are at home in one, and use, load and audit its warehouses; a second warehouse of theirs
        /// is in another region. Those transactions have kinds and a [class](Workload::classes) of their own.
        pub at_home: bool = false,
        /// The share of a region's clients that are of that class.
        pub multi_region_clients: f64 = 0.5,
    }
}

/// The workload.
#[derive(Clone, Debug)]
pub struct Tpcc {
    parameters: Parameters,
    /// The prefix of each warehouse's keys, the first's first.
    prefixes: Arc<[Prefix]>,
}

impl Tpcc {
    /// The workload with these parameters.
    ///
    /// # Errors
    /// [`ParameterError`]: one that makes no sense.
    pub fn new(parameters: Parameters) -> Result<Tpcc, ParameterError> {
        let Parameters { warehouses, scale, partitions, mix, remote, at_home, multi_region_clients } =
            parameters;
        let Scale { districts, customers, items, orders, undelivered } = scale;
        require_in("warehouses", warehouses, 1..=MAX_WAREHOUSES)?;
        require_in("partitions", partitions, 1..=SLOTS)?;
        require_in("districts", districts, 1..=MAX_DISTRICTS)?;
        require_in("customers", customers, 1..=MAX_ROWS)?;
        require_in("items", items, 1..=MAX_ROWS)?;
        require(orders <= customers && undelivered <= orders, || {
            format!(
                "{undelivered} undelivered of {orders} orders of {customers} customers: each must be no more than the next"
            )
        })?;
        mix.require_sound()?;
        if let Remote::Share(share) = remote {
            require((0.0..=1.0).contains(&share) && (share == 0.0 || warehouses > 1), || {
                format!(
                    "the share of remote transactions must be 0 to 1, and 0 with one warehouse, not {share}"
                )
            })?;
        }
        require_share("multi_region_clients", multi_region_clients)?;
        require(!at_home || (partitions > 1 && warehouses as usize >= partitions), || {
            format!(
                "{warehouses} warehouses at home in {partitions} regions: there must be two regions, and a warehouse in each"
            )
        })?;
        require(!at_home || matches!(remote, Remote::Share(_)), || {
            "second warehouses are in other regions where warehouses are at home: remote must be a share"
                .to_owned()
        })?;
        let prefixes = (1..=warehouses).map(|warehouse| Prefix::new(warehouse, partitions)).collect();
        Ok(Tpcc { parameters, prefixes })
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The share of transactions that have a warehouse of another region.
    fn multi_region(&self) -> f64 {
        match self.parameters {
            Parameters { at_home: true, remote: Remote::Share(share), mix, .. } => {
                share * (mix.new_order + mix.payment) / 100.0
            }
            _ => 0.0,
        }
    }
}

/// What the kinds of transactions with a warehouse of another region are named.
pub const MULTI_REGION: [&str; 2] = ["multi-region new_order", "multi-region payment"];
/// The class of clients that ask for those, where there are classes.
const MULTI_CLASS: usize = 1;

/// The kinds of transactions, as [`Workload::kinds`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of [`new_order`].
    NewOrder,
    /// Of [`payment`].
    Payment,
    /// Of [`order_status`].
    OrderStatus,
    /// Of [`delivery`].
    Delivery,
    /// Of [`stock_level`].
    StockLevel,
}

impl Kind {
    /// The kind with this number, of transactions of one region or of several.
    fn numbered(number: u8) -> Option<Kind> {
        let of_several = usize::from(number).checked_sub(Kind::ALL.len());
        match of_several {
            Some(0) => Some(Kind::NewOrder),
            Some(1) => Some(Kind::Payment),
            _ => Kind::ALL.get(usize::from(number)).copied(),
        }
    }

    /// The numbers of the kind: that of transactions of one region first.
    fn numbers(self) -> [u8; 2] {
        let several = Kind::ALL.len() as u8 + self as u8;
        [self as u8, if self as usize >= MULTI_REGION.len() { self as u8 } else { several }]
    }

    /// All of them, in order.
    pub const ALL: [Kind; 5] =
        [Kind::NewOrder, Kind::Payment, Kind::OrderStatus, Kind::Delivery, Kind::StockLevel];
}

impl Workload for Tpcc {
    fn name(&self) -> &'static str {
        "tpcc"
    }

    fn kinds(&self) -> &'static [&'static str] {
        static AT_HOME: [&str; 7] = [
            "new_order",
            "payment",
            "order_status",
            "delivery",
            "stock_level",
            MULTI_REGION[0],
            MULTI_REGION[1],
        ];
        if self.parameters.at_home { &AT_HOME } else { &AT_HOME[..Kind::ALL.len()] }
    }

    fn params(&self) -> Vec<(&'static str, Param)> {
        let Parameters { warehouses, scale, partitions, mix, remote, at_home, multi_region_clients } =
            self.parameters;
        let mut params = vec![
            ("warehouses", Param::Int(u64::from(warehouses))),
            ("partitions", Param::Int(partitions as u64)),
            ("mix", Param::Text(mix.to_string())),
            (
                "remote",
                match remote {
                    Remote::Standard => Param::Text("standard".to_owned()),
                    Remote::Share(share) => Param::Real(share),
                },
            ),
            ("districts", Param::Int(u64::from(scale.districts))),
            ("customers", Param::Int(u64::from(scale.customers))),
            ("items", Param::Int(u64::from(scale.items))),
            ("orders", Param::Int(u64::from(scale.orders))),
            ("undelivered", Param::Int(u64::from(scale.undelivered))),
        ];
        if at_home {
            params.push(("warehouses_at", Param::Text("home".to_owned())));
            params.push(("multi_region_clients", Param::Real(multi_region_clients)));
        }
        params
    }

    /// Every row that is read, written or both counts once; those of the reconnaissance do not.
    fn accesses(&self) -> Vec<f64> {
        // An order has 10 lines on average, and six customers in ten are found by their name.
        let (lines, by_name) = (10.0, 0.6);
        let order = 1.0 + lines;
        let mut accesses = vec![
            // Warehouse, customer, district, items and stocks; order, new order, newest order, lines.
            3.0 + 2.0 * lines + 2.0 + order,
            // Warehouse, district, customer, history.
            4.0 + by_name,
            // Customer, district, newest order.
            3.0 + order + by_name,
            // District, order, new order, lines, customer.
            f64::from(self.parameters.scale.districts) * (3.0 + order),
            // District, 20 orders, their items' stocks.
            1.0 + 20.0 * (order + lines),
        ];
        if self.parameters.at_home {
            accesses.extend_from_within(..MULTI_REGION.len());
        }
        accesses
    }

    fn classes(&self) -> Vec<Class> {
        let (at_most, clients) = (self.multi_region(), self.parameters.multi_region_clients);
        if at_most == 0.0 || at_most >= 1.0 {
            return Vec::new();
        }
        vec![Class { clients: 1.0 - clients, at_most: 1.0 }, Class { clients, at_most }]
    }

    fn source(&self, seed: u64, number: usize, populations: usize) -> Box<dyn Source> {
        Box::new(source::Clients::new(self, seed, number, populations))
    }

    fn audit(&self) -> ProcedureId {
        audit::AUDIT
    }

    fn audits(&self) -> Vec<ProcedureId> {
        if self.is_audited_at_home() { Vec::new() } else { vec![self.audit(), system::DIGEST] }
    }

    fn is_audited_at_home(&self) -> bool {
        self.parameters.at_home
    }

    fn check(&self, results: &Results) -> Vec<Finding> {
        check::check(&self.parameters, results)
    }
}
