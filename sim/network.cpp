#include "sim/network.hpp"
