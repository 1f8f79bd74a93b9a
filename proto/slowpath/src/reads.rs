//! Record of the application's reads from one flow (connection): the number of bytes that were
//! read, in 64 bits, and the position at which a measurement of the reads began.

/// Record of the application's reads. `FlowState::rx_read` has the lower 32 bits of the number of
/// bytes that were read. This record has the upper bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Number of multiples of [`STEP`](Self::STEP) that `rx_read` has crossed. The lowest bit of
    /// this number equals the highest bit of `rx_read`.
    crossed: u32,
    /// Stream position at which the present measurement for receive-buffer autotuning began.
    pub autotune_from: u32,
}

impl Reads {
    /// 2^31 bytes. `crossed` counts the multiples of this number that the reads have crossed. The
    /// caller must call [`update`](Self::update) after each read that crosses a multiple.
    pub const STEP: u32 = 1 << 31;

    /// Records that the application has read up to `rx_read`. The caller must call this function
    /// after each read that crosses a multiple of [`STEP`](Self::STEP), and may call it after any
    /// read.
    pub fn update(&mut self, rx_read: u32) {
        self.crossed = self
            .crossed
            .wrapping_add((self.crossed ^ rx_read >> 31) & 1);
    }

    /// Returns the number of bytes that the application has read. `rx_read` is the present value of
    /// `FlowState::rx_read`.
    pub fn total(self, rx_read: u32) -> u64 {
        u64::from(self.crossed >> 1) << 32 | u64::from(rx_read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_does_not_wrap() {
        let mut count = Reads::default();
        let mut total = 0_u64;
        for step in [0, 1, (1 << 30) - 1, 1 << 30, 1 << 30, 999, 0]
            .iter()
            .cycle()
            .take(100)
        {
            total += step;
            count.update(total as u32);
            assert_eq!(count.total(total as u32), total);
        }
        assert!(total > 40 << 30);
    }
}
