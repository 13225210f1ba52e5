#include "sim/replay.hpp"
