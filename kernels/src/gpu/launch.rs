//! How the points of a generated kernel are spread over blocks of threads. The code generator and whoever launches agree here; both
//! sides derive everything from the schedule and the number of points, so a kernel needs no hidden arguments.

/// A pattern by which threads take the points of a nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// A thread takes `vector` neighboring points, a block `block · vector`.
    GridStride,
    /// The threads of a block share a point: they reduce over its inner space together.
    BlockPerPoint,
    /// The threads of a wave share a point; a block has as many points as waves.
    WavePerPoint,
    /// A block takes `vector` neighboring points and cuts their inner space into `block / vector` parts: each thread reduces a part of
    /// a point, so that neighbors read neighboring elements of a row.
    BlockPerColumns,
}

impl Schedule {
    /// All.
    pub const ALL: [Schedule; 4] =
        [Schedule::GridStride, Schedule::BlockPerPoint, Schedule::WavePerPoint, Schedule::BlockPerColumns];

    /// Its name in an artifact's metadata.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::GridStride => "grid-stride",
            Schedule::BlockPerPoint => "block-per-point",
            Schedule::WavePerPoint => "wave-per-point",
            Schedule::BlockPerColumns => "block-per-columns",
        }
    }
    /// Most blocks of a launch. Kernels take this as the distance, in blocks, between the points of one block and its next ones: a
    /// launch of fewer blocks covers all points in one step. Where waves take the rows after all, since they turned out short, most
    /// blocks of [`Schedule::BlockPerPoint`] find nothing to do; each costs some 70 ns of a processor (H200).
    pub fn max_blocks(self) -> u32 {
        match self {
            Schedule::BlockPerPoint => 1 << 14,
            _ => 1 << 16,
        }
    }
    /// From its name.
    pub fn from_name(name: &str) -> Option<Schedule> {
        Schedule::ALL.into_iter().find(|s| s.name() == name)
    }
}

/// How a generated kernel is launched; fixed when it is compiled, the same for every architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Who takes what.
    pub schedule: Schedule,
    /// Threads per block.
    pub block: u32,
    /// Points per thread ([`Schedule::GridStride`]) or per block ([`Schedule::BlockPerColumns`]); 1 for the others.
    pub vector: u32,
}

impl Launch {
    /// Whether a kernel can have it: a block of whole waves that every GPU accepts, a vector that goes with the schedule.
    pub fn is_valid(&self) -> bool {
        let block = self.block.is_multiple_of(64) && (64..=1024).contains(&self.block);
        let vector = match self.schedule {
            Schedule::GridStride => (1..=16).contains(&self.vector),
            Schedule::BlockPerPoint | Schedule::WavePerPoint => self.vector == 1,
            Schedule::BlockPerColumns => (1..=self.block).contains(&self.vector),
        };
        block && vector
    }

    /// Points that a block takes in one step; `wave` is the architecture's wave size.
    pub fn points_per_block(&self, wave: u32) -> u32 {
        match self.schedule {
            Schedule::GridStride => self.block.saturating_mul(self.vector),
            Schedule::BlockPerPoint => 1,
            Schedule::WavePerPoint => self.block / wave.max(1),
            Schedule::BlockPerColumns => self.vector,
        }
        .max(1)
    }

    /// Blocks of a launch over `points` points, along x. 0 when there is nothing to do: then there is no launch.
    pub fn grid(&self, wave: u32, points: i64) -> u32 {
        let points = u64::try_from(points).unwrap_or(0);
        let blocks = points.div_ceil(u64::from(self.points_per_block(wave)));
        u32::try_from(blocks).unwrap_or(u32::MAX).min(self.schedule.max_blocks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_cover_all_points_and_stay_within_the_limit() {
        for schedule in Schedule::ALL {
            assert_eq!(Schedule::from_name(schedule.name()), Some(schedule));
            let vector = match schedule {
                Schedule::GridStride => 4,
                Schedule::BlockPerColumns => 32,
                _ => 1,
            };
            let l = Launch { schedule, block: 256, vector };
            assert!(l.is_valid());
            for wave in [32, 64] {
                let per_block = i64::from(l.points_per_block(wave));
                for points in [0, 1, per_block - 1, per_block, per_block + 1, 1 << 20, i64::MAX] {
                    let grid = i64::from(l.grid(wave, points));
                    let most = i64::from(schedule.max_blocks());
                    assert!(grid <= most && (points == 0) == (grid == 0));
                    assert!(grid == most || grid * per_block >= points);
                    assert!((grid - 1) * per_block < points.max(1), "a block too many");
                }
            }
        }
        let l = Launch { schedule: Schedule::WavePerPoint, block: 256, vector: 1 };
        assert_eq!((l.grid(32, 9), l.grid(64, 9)), (2, 3));
        assert!(!Launch { block: 100, ..l }.is_valid() && !Launch { vector: 2, ..l }.is_valid());
    }
}
