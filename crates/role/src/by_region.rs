//! Metrics with a series for each region.

/// The most regions that there can be.
pub const REGIONS_MAX: u16 = 16;

/// The names of the series of a metric, by the number of the region.
pub type ByRegion = [&'static str; REGIONS_MAX as usize];

/// The names of the series of a metric, a literal: that of region 1 ends in `{region="1"}`.
#[macro_export]
macro_rules! by_region {
    ($metric:literal) => {
        $crate::by_region!($metric: "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15")
    };
    ($metric:literal: $($region:literal)*) => { [$(concat!($metric, "{region=\"", $region, "\"}")),*] };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_the_number_of_its_region() {
        let series: ByRegion = by_region!("ordain_view_records");
        for (region, name) in series.iter().enumerate() {
            assert_eq!(*name, format!("ordain_view_records{{region=\"{region}\"}}"));
        }
    }
}
